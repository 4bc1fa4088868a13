"""Python's garbage collector around imports of large packages.

torch and TorchRec make about a million objects that live as long as the process. While they are made, the collector
walks over them again and again, a sixth of the processor time of the import, and later in each full collection.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected_imports() -> Iterator[None]:
    """Pause the collector while the block imports, and leave out of all later collections what exists at its end."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
