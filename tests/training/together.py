"""together.py MODEL OUT CHANGES SECONDS: one of several processes that torchrun starts; each writes what it ended with.

With SECONDS above 0 collectives time out after so many, and all processes but the first take longer for a pruning step.
"""

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from small import a_recipe, trained

from secateur.training import gradual


def main(model, out, changes, seconds):
    torch.set_num_threads(1)
    out, seconds, rank = Path(out), float(seconds), int(os.environ["RANK"])
    if seconds:
        dist.init_process_group("gloo", timeout=timedelta(seconds=seconds))
        prune_ = gradual.prune_

        def slow(*arguments, **words):
            time.sleep((rank > 0) * (seconds + 1))
            return prune_(*arguments, **words)

        gradual.prune_ = slow
    run = trained(a_recipe(model, *json.loads(changes)), out)
    masks = {f"mask {name}": mask for name, mask in run.keeper.masks.items()}
    weights = {name: tensor.contiguous() for name, tensor in run.model.state_dict().items()}
    rows = run.processes.joined(torch.full((rank + 1, 2), float(rank)))
    said = torch.tensor([run.processes.agreed(rank + 5)])
    save_file({**weights, **masks, "rows": rows, "said": said}, out / f"rank{rank}.safetensors")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
