import numpy as np
import pytest

from secateur.bundled import FOLDER, LABEL_NAMES, MEAN, STD, load_images
from secateur.data import evaluation_batches
from secateur.evaluation import evaluate
from secateur.models import load_model


def test_the_model_scores_above_93_per_cent_on_the_first_1000_test_images():
    model = load_model("bundled")
    batches = evaluation_batches("bundled", model, batch_size=250)
    assert evaluate(model, [batch for batch, _ in zip(batches, range(4), strict=False)]).top1 > 93


@pytest.mark.parametrize(
    ("split", "count", "fewest", "most"), [("train", 8192, 819, 820), ("test", 10_000, 1000, 1000)]
)
def test_the_images_are_balanced_and_as_many_as_stated(split, count, fewest, most):
    images, labels = load_images(split)
    assert images.shape == (count, 28, 28) and labels.shape == (count,) and images.dtype == labels.dtype == np.uint8
    counts = np.bincount(labels)
    assert len(counts) == len(LABEL_NAMES) and (counts.min(), counts.max()) == (fewest, most)


def test_no_image_is_for_training_and_for_testing():
    train, test = ({image.tobytes() for image in load_images(split)[0]} for split in ("train", "test"))
    assert not train & test


def test_the_recorded_mean_and_deviation_are_those_of_the_training_images():
    pixels = load_images("train")[0] / 255
    np.testing.assert_allclose([pixels.mean(), pixels.std()], [*MEAN, *STD], atol=2e-3)


def test_no_caller_can_change_the_images_of_another():
    with pytest.raises(ValueError, match="read-only"):
        load_images("test")[0][0] = 0


def test_the_notice_names_owners_and_licences():
    notice = (FOLDER / "NOTICE.md").read_text(encoding="utf-8")
    assert all(
        words in notice for words in ("Zalando SE", "The MIT License (MIT)", "Apache-2.0", "without restriction")
    )


def test_model_and_images_stay_small():
    sizes = {path.name: path.stat().st_size for path in FOLDER.rglob("*") if path.suffix in (".npz", ".safetensors")}
    assert sizes["model.safetensors"] <= 8e6 and len(sizes) == 2
