import pytest
import torch

from secateur.bitmask import PARTS, compress, compressed_bytes, decompress
from secateur.errors import InputError

SPECIAL = [0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1.5, -2.0, 0.0, 0.0]
TENSORS = {
    "float32": torch.tensor(SPECIAL * 3).reshape(3, 9),
    "float64": torch.tensor(SPECIAL, dtype=torch.float64).reshape(1, 9),
    "bfloat16": torch.tensor(SPECIAL, dtype=torch.bfloat16).reshape(9, 1),
    "float16": torch.tensor(SPECIAL * 2, dtype=torch.float16).reshape(2, 3, 3),
    "int8": torch.tensor([[0, -128, 0, 127, 1, 0, 0, 0]], dtype=torch.int8),
    "a row": torch.tensor([0.0, 1.0, 0.0]),
    "a kernel": torch.tensor(SPECIAL * 4).reshape(2, 2, 3, 3),
    "nothing but zeros": torch.zeros(2, 17),
    "no zero": torch.ones(3, 16),
    "strided": torch.tensor(SPECIAL * 2).reshape(9, 2).t(),
}


def bits_of(tensor):
    return tensor.contiguous().view(torch.uint8)


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_comes_back_to_the_last_bit(name):
    tensor = TENSORS[name]
    again = decompress(compress(tensor))
    assert again.dtype == tensor.dtype and again.shape == tensor.shape
    assert torch.equal(bits_of(again), bits_of(tensor))


@pytest.mark.parametrize("name", TENSORS)
def test_the_parts_are_what_reading_entry_by_entry_gives(name):
    tensor = TENSORS[name]
    parts = compress(tensor)
    values, offsets, bits = [], [], []
    for row in tensor.reshape(len(tensor), -1):
        offsets.append(len(values))
        kept = [bool(bits_of(entry.reshape(1)).any()) for entry in row]
        values += [entry for entry, is_kept in zip(row, kept, strict=True) if is_kept]
        padded = kept + [False] * (-len(kept) % 8)
        bits.append([sum(bit << i for i, bit in enumerate(padded[at : at + 8])) for at in range(0, len(padded), 8)])
    assert parts["shape"].tolist() == list(tensor.shape)
    assert parts["row_offsets"].tolist() == offsets
    assert parts["bitmask"].tolist() == bits
    wanted = torch.stack(values) if values else tensor.new_zeros(0)
    assert torch.equal(bits_of(parts["compressed"]), bits_of(wanted))


@pytest.mark.parametrize("name", TENSORS)
def test_the_bytes_foretold_are_those_taken(name):
    assert compressed_bytes(TENSORS[name]) == sum(part.nbytes for part in compress(TENSORS[name]).values())


DAMAGED = {  # part: what it becomes, and what is said
    "no shape": ("shape", torch.tensor([], dtype=torch.int64), "shape is no row of 1 to 8 int64"),
    "a shape of floats": ("shape", torch.tensor([3.0, 9.0]), "shape is no row"),
    "a shape in a square": ("shape", torch.tensor([[3, 9]]), "shape is no row"),
    "a negative size": ("shape", torch.tensor([-3, -9]), r"shape is \[-3, -9\], with a size below 1"),
    "a size of zero": ("shape", torch.tensor([3, 0]), "with a size below 1"),
    "a size that overflows": ("shape", torch.tensor([3, 2**62, 2**62]), "bitmask is torch.uint8"),
    "too many rows": ("shape", torch.tensor([4, 9]), r"bitmask is torch.uint8 \[3, 2\], not torch.uint8 \[4, 2\]"),
    "too many columns": ("shape", torch.tensor([3, 17]), r"not torch.uint8 \[3, 3\]"),
    "more columns in the same bytes": ("shape", torch.tensor([3, 10]), "row_offsets are not those"),
    "a bitmask of words": ("bitmask", torch.zeros(3, 2, dtype=torch.int32), "bitmask is torch.int32"),
    "bits after the end": ("bitmask", torch.full((3, 2), 255, dtype=torch.uint8), "bits set after the last column"),
    "bits elsewhere": ("bitmask", torch.zeros(3, 2, dtype=torch.uint8), "row_offsets are not those of the bitmask"),
    "offsets too short": ("row_offsets", torch.tensor([0, 6]), "row_offsets is not int64 of 3 rows"),
    "offsets as floats": ("row_offsets", torch.tensor([0.0, 6.0, 12.0]), "row_offsets is not int64"),
    "offsets that go back": ("row_offsets", torch.tensor([0, 12, 6]), "row_offsets are not those"),
    "values missing": ("compressed", torch.ones(17), r"compressed is \[17\], the bitmask has 18 bits set"),
    "values in a square": ("compressed", torch.ones(3, 6), r"compressed is \[3, 6\]"),
    "values of another kind": ("compressed", torch.ones(18, dtype=torch.bool), "compressed is torch.bool"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_parts_that_do_not_fit_are_refused_before_they_are_used(case):
    part, value, words = DAMAGED[case]
    parts = compress(TENSORS["float32"])
    assert list(parts) == list(PARTS)
    if case == "more columns in the same bytes":  # and the tenth column is set
        parts["bitmask"][:, 1] |= 2
    with pytest.raises(InputError, match=words):
        decompress({**parts, part: value})
