import base64
import gzip
import hashlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from neuroshard_api.documents.config_map import (
    LIMIT_BYTES,
    ConfigMapContents,
    ConfigMapTooLargeError,
    contents_of,
    pack_files,
    unpack_files,
)
from neuroshard_api.documents.document import UNPACKED_LIMIT_BYTES, DocumentError
from support.depth import generated

NAMES = st.from_regex(r"[a-z][a-z0-9.]{0,8}[a-z](/[a-z]{1,8})?", fullmatch=True).filter(
    lambda name: not name.endswith(".gz")
)
NOISE = hashlib.shake_256(b"noise").digest(LIMIT_BYTES)


@generated(20, 100)
@given(st.dictionaries(NAMES, st.binary() | st.text().map(str.encode), max_size=5))
@example({"a.bin": NOISE})
@example({"plan.json": b'{"device": 1}' * 100_000, "bundle/weights.safetensors": NOISE[:1000]})
@example({"a.txt": "naïve \U0001f600 \x85\ufeff\r\n".encode(), "empty": b""})
def test_files_come_back_as_they_were(files: dict[str, bytes]) -> None:
    """Whatever they hold, compressed or not."""
    assert unpack_files(pack_files(files)) == files


def test_small_text_is_legible_and_anything_else_is_base64() -> None:
    """What a person sees of a result with `kubectl get --output yaml`."""
    contents = pack_files({"hardware.json": b'{"product": "NVIDIA-H200"}\n', "bundle/weights.safetensors": b"\x00\xff"})

    assert contents == ConfigMapContents(
        data={"hardware.json": '{"product": "NVIDIA-H200"}\n'},
        binary_data={"bundle__weights.safetensors": base64.b64encode(b"\x00\xff").decode()},
    )


def test_large_files_are_compressed_and_small_ones_beside_them_are_not() -> None:
    """Only together they are large; what does not shrink stays as it is."""
    plan = b'{"device": 1}' * 50_000
    contents = pack_files({"plan.json": plan, "summary.json": b"{}", "noise": NOISE[:50_000]})

    assert set(contents.data) == {"summary.json"}
    assert set(contents.binary_data) == {"plan.json.gz", "noise"}
    assert gzip.decompress(base64.b64decode(contents.binary_data["plan.json.gz"])) == plan


def test_equal_files_give_equal_contents() -> None:
    """A repeated publication changes nothing, so that nobody who watches is woken."""
    files = {"b": b"x" * 600_000, "a": b"y"}

    assert pack_files(files) == pack_files(dict(reversed(files.items())))


def test_what_cannot_fit_is_refused_with_its_size() -> None:
    """The sentence names the largest file and the limit."""
    with pytest.raises(
        ConfigMapTooLargeError, match=r"need 1,048,57[78] bytes .* holds 1,048,576; the largest is noise"
    ):
        pack_files({"noise": NOISE, "more": b"+"})


@pytest.mark.parametrize("path", ["a__b", "plan.json.gz", "..hidden", "with space", "ü", "", "x" * 254])
def test_a_name_that_no_key_can_have_is_refused(path: str) -> None:
    """By name, with what to do."""
    with pytest.raises(DocumentError, match="rename the file"):
        pack_files({path: b""})


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("a", "%%%", "not base64"),
        ("a.gz", base64.b64encode(b"plain").decode(), "not complete gzip"),
        ("a.gz", base64.b64encode(gzip.compress(b"x" * 100)[:-9]).decode(), "not complete gzip"),
        ("a.gz", base64.b64encode(gzip.compress(bytes(UNPACKED_LIMIT_BYTES + 1))).decode(), "larger than 67,108,864"),
    ],
    ids=["base64", "no gzip", "cut off", "bomb"],
)
def test_a_damaged_value_is_named(key: str, value: str, problem: str) -> None:
    """People edit ConfigMaps by hand."""
    with pytest.raises(DocumentError, match=f"^ConfigMap plan: .*{problem}"):
        unpack_files(ConfigMapContents(binary_data={key: value}), where="ConfigMap plan")


def test_a_config_map_without_contents_is_empty() -> None:
    """The API server leaves empty maps out."""
    assert unpack_files(contents_of({"metadata": {"name": "result"}})) == {}
