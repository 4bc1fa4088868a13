"""Docstrings of attributes, as a schema describes its fields. Read from the source when a schema is made, never before.

Python keeps no docstring of an attribute, and reading the source of every document would take a tenth of a start.
"""

import ast
import inspect
import textwrap
from itertools import pairwise


def attribute_docstrings(cls: type) -> dict[str, str]:
    """Return the docstrings below the annotated attributes in a class's own body, by name."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    return {
        above.target.id: inspect.cleandoc(below.value.value)
        for above, below in pairwise(definition.body)
        if isinstance(above, ast.AnnAssign)
        and isinstance(above.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }
