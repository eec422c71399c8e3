"""Tiny detectors and classifiers of transformers with random weights, and folders of images with boxes."""

import json

import numpy as np
import torch
from PIL import Image

from secateur.hf_models import _quietly

NAMES = {1: "disc", 2: "square", 5: "bar"}  # categories by COCO's ids; 3 and 4 are unused, as some of COCO's are
SIZES = [(48, 32), (32, 40), (40, 40), (24, 56), (48, 32), (36, 28)]  # (width, height) of the images


def resnet_config(**changes):
    from transformers import ResNetConfig

    shape = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
    return ResNetConfig(**(shape | changes))


def detr_config(backbone="resnet", **changes):
    from transformers import DetrConfig

    if backbone == "resnet":
        inner = resnet_config(out_features=["stage2"])
    else:
        inner = {"model_type": "timm_backbone", "backbone": backbone, "out_indices": [1, 2], "features_only": True}
    size = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "num_queries": 7}
    return DetrConfig(backbone_config=inner, **({**size, **heads, "num_labels": 6} | changes))


def detr(backbone="resnet", seed=0, **changes):
    from transformers import DetrForObjectDetection

    return randomised(DetrForObjectDetection(detr_config(backbone, **changes)), seed)


def randomised(model, seed=0):
    """In evaluation mode, with weights that matter: with fresh ones every image has the same boxes."""
    from transformers import DetrImageProcessor

    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
        for name, buffer in model.named_buffers():  # the frozen batch norms, which are the identity at first
            if name.endswith("running_var"):
                buffer.copy_(torch.rand_like(buffer) + 0.5)
    model.image_processor = DetrImageProcessor(size={"shortest_edge": 32, "longest_edge": 56})
    return model.eval()


def conditional_detr():
    """A detector whose loss is of another kind: of all boxes of a batch together."""
    from transformers import ConditionalDetrConfig, ConditionalDetrForObjectDetection

    config = {**detr_config().to_dict(), "backbone_config": resnet_config(out_features=["stage2"])}
    return randomised(ConditionalDetrForObjectDetection(ConditionalDetrConfig(**config)))


def vit(seed=0, image_size=16, **changes):
    """A vision transformer that tells three classes apart."""
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    torch.manual_seed(seed)
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    model = ViTForImageClassification(ViTConfig(image_size=image_size, patch_size=8, num_labels=3, **(size | changes)))
    model.image_processor = ViTImageProcessor(size={"height": image_size, "width": image_size})
    return model.eval()


def resnet(seed=0):
    """A residual network that tells three classes apart, without an image processor."""
    from transformers import ResNetForImageClassification

    torch.manual_seed(seed)
    return ResNetForImageClassification(resnet_config(num_labels=3)).eval()


def saved(model, folder):
    """The folder that transformers' own save_pretrained writes."""
    with _quietly():
        model.save_pretrained(folder)
        if hasattr(model, "image_processor"):
            model.image_processor.save_pretrained(folder)
    return folder


def index_of(boxes_per_image=2, sizes=SIZES, seed=0, first_number=10):
    """A COCO index of images with random boxes; every third image has none."""
    random = np.random.default_rng(seed)
    images, annotations = [], []
    for i, (width, height) in enumerate(sizes):
        images.append({"id": first_number + i, "file_name": f"{i}.png", "width": width, "height": height})
        for _ in range(boxes_per_image if i % 3 != 2 else 0):
            w, h = (int(random.integers(4, side // 2)) for side in (width, height))
            x, y = int(random.integers(0, width - w)), int(random.integers(0, height - h))
            category = int(random.choice(list(NAMES)))
            annotations.append(
                {"id": len(annotations) + 1, "image_id": first_number + i, "category_id": category,
                 "bbox": [x, y, w, h], "area": w * h, "iscrowd": 0}
            )  # fmt: skip
    categories = [{"id": number, "name": name} for number, name in NAMES.items()]
    return {"images": images, "annotations": annotations, "categories": categories}


def coco_folder(root, index=None, seed=0):
    """A folder with images/ and instances.json; the images are noise with their boxes painted in."""
    index, random = index or index_of(seed=seed), np.random.default_rng(seed)
    (root / "images").mkdir(parents=True)
    for row in index["images"]:
        pixels = random.integers(0, 80, (row["height"], row["width"], 3), dtype=np.uint8)
        for thing in (a for a in index["annotations"] if a["image_id"] == row["id"]):
            x, y, w, h = map(int, thing["bbox"])
            pixels[y : y + h, x : x + w, thing["category_id"] % 3] = 250
        Image.fromarray(pixels).save(root / "images" / row["file_name"])
    write_index(root, index)
    return root


def write_index(root, index):
    (root / "instances.json").write_text(json.dumps(index))
