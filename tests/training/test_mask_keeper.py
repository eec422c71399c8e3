"""Zeros stay zero: whatever optimizer steps, whatever wraps the model, while masks change and once they were stored."""

import copy
import gc

import numpy as np
import pytest
import timm.optim
import torch
import torch.distributed as dist
from cases import Tied, example, images, mlp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import secateur
from secateur import InputError, MaskKeeper, NumericsError

OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
    "SGD, foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, foreach=True),
    "SGD, fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1, amsgrad=True, foreach=False),
    "AdamW, foreach": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, foreach=True),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, fused=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True, weight_decay=0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01, weight_decay=0.1, initial_accumulator_value=0.1),
    "Adadelta": lambda p: torch.optim.Adadelta(p, weight_decay=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01, weight_decay=0.1),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01, weight_decay=0.1),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.01, t0=1, weight_decay=0.1),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01, weight_decay=0.1),
    "timm's lamb": lambda p: timm.optim.create_optimizer_v2(p, "lamb", lr=0.01, weight_decay=0.1),
    "timm's adan": lambda p: timm.optim.create_optimizer_v2(p, "adan", lr=0.01, weight_decay=0.1),
    "timm's lion": lambda p: timm.optim.create_optimizer_v2(p, "lion", lr=0.01, weight_decay=0.1),
    "timm's madgrad": lambda p: timm.optim.create_optimizer_v2(p, "madgrad", lr=0.01, weight_decay=0.1),
    "timm's lookahead": lambda p: timm.optim.create_optimizer_v2(p, "lookahead_adamw", lr=0.01, weight_decay=0.1),
}


def half_masks(model, names=("1.weight", "3.weight"), seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.rand(model.get_parameter(name).shape, generator=generator) < 0.5 for name in names}


def train(model, optimizer, steps=7, accumulate=1, batches=None):
    batches = batches or images()
    for step in range(steps * accumulate):
        inputs, targets = batches[step % len(batches)]
        (nn.functional.cross_entropy(model(inputs), targets) / accumulate).backward()
        if (step + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()


def assert_zeros_hold(model, masks):
    for name, mask in masks.items():
        weight = model.get_parameter(name).detach()
        assert not weight[~mask].any(), name
        assert not torch.signbit(weight[~mask]).any(), f"{name} holds −0"
        assert weight[mask].all(), f"{name} lost weights that are kept"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_zeros_and_their_moments_stay_zero_under_any_optimizer(name):
    model = mlp()
    masks = half_masks(model)
    optimizer = OPTIMIZERS[name](model.parameters())
    train(model, optimizer, steps=3)  # it has moments for every weight before the masks come
    before = copy.deepcopy(model)
    keeper = MaskKeeper(model, masks)
    keeper.attach(optimizer)
    assert_zeros_hold(model, masks)
    train(model, optimizer)
    assert_zeros_hold(model, masks)
    keeper.verify()
    state = getattr(optimizer, "_base_optimizer", optimizer).state
    for n, mask in masks.items():
        remembered = [v for v in state[model.get_parameter(n)].values() if torch.is_tensor(v)]
        assert remembered and not any(v[~mask].any() for v in remembered if v.shape == mask.shape), n
    assert not torch.equal(before[5].weight, model[5].weight)


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_kept_weights_go_where_a_loop_in_numpy_takes_them(momentum, weight_decay):
    generator = np.random.default_rng(0)
    inputs, targets = generator.normal(size=(11, 5)), generator.normal(size=(11, 3))
    layer = nn.Linear(5, 3, bias=False).double()
    keep = generator.random((3, 5)) < 0.4
    weight, velocity = np.where(keep, layer.weight.detach().numpy(), 0), np.zeros((3, 5))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.05, momentum=momentum, weight_decay=weight_decay)
    MaskKeeper(layer, {"weight": torch.tensor(keep)}).attach(optimizer)
    for _ in range(20):
        optimizer.zero_grad()
        (layer(torch.tensor(inputs)) - torch.tensor(targets)).square().sum().backward()
        optimizer.step()
        gradient = 2 * (inputs @ weight.T - targets).T @ inputs + weight_decay * weight
        for i, j in zip(*keep.nonzero(), strict=True):
            velocity[i, j] = momentum * velocity[i, j] + gradient[i, j]
            weight[i, j] -= 0.05 * velocity[i, j]
    np.testing.assert_allclose(layer.weight.detach().numpy(), weight, rtol=1e-12, atol=1e-14)


def test_without_a_keeper_the_zeros_would_move():
    model = mlp()
    masks = half_masks(model)
    MaskKeeper(model, masks).apply_to_(model)
    train(model, OPTIMIZERS["SGD"](model.parameters()), steps=1)
    with pytest.raises(NumericsError, match=r"1\.weight has \d+ weights that its mask drops and that are not zero"):
        MaskKeeper(model, masks).verify()


def test_a_moment_that_is_not_finite_leaves_the_zero_a_zero():
    model = mlp()
    optimizer = OPTIMIZERS["SGD"](model.parameters())
    train(model, optimizer, steps=1)
    keeper = MaskKeeper(model, half_masks(model))
    keeper.attach(optimizer)
    optimizer.state[model[1].weight]["momentum_buffer"][~keeper.masks["1.weight"]] = torch.nan
    train(model, optimizer, steps=2)
    assert_zeros_hold(model, keeper.masks)
    assert model[1].weight.isfinite().all()


def test_zeros_hold_through_gradient_accumulation():
    model = mlp()
    keeper, optimizer = MaskKeeper(model, half_masks(model)), OPTIMIZERS["AdamW, foreach"](model.parameters())
    keeper.attach(optimizer)
    train(model, optimizer, steps=4, accumulate=3)
    assert_zeros_hold(model, keeper.masks)


@pytest.mark.parametrize("name", ["SGD", "AdamW, foreach", "AdamW, fused"])
def test_zeros_hold_in_mixed_precision_and_when_the_scaler_skips_a_step(name):
    model = mlp()
    keeper, optimizer = MaskKeeper(model, half_masks(model)), OPTIMIZERS[name](model.parameters())
    keeper.attach(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step, (inputs, targets) in enumerate(images(batches=5)):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(inputs), targets)
        scaler.scale(loss * (torch.inf if step == 2 else 1)).backward()
        before = model[5].weight.clone()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(before, model[5].weight) == (step == 2)
        assert_zeros_hold(model, keeper.masks)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_zeros_hold_in_any_type_also_when_the_model_is_converted_on_the_way(dtype):
    model = mlp()
    keeper = MaskKeeper(model, half_masks(model))
    keeper.attach(OPTIMIZERS["SGD"](model.parameters()))
    model.to(dtype)
    optimizer = OPTIMIZERS["SGD"](model.parameters())
    keeper.attach(optimizer)
    train(model, optimizer, batches=images(dtype))
    assert_zeros_hold(model, keeper.masks)


def test_a_model_whose_parameters_are_replaced_when_it_is_moved_needs_its_new_optimizer_attached_and_no_more():
    model = mlp()
    keeper = MaskKeeper(model, half_masks(model))
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        old = model[1].weight
        model.double()
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    assert model[1].weight is not old
    optimizer = OPTIMIZERS["Adam"](model.parameters())
    keeper.attach(optimizer)
    train(model, optimizer, batches=images(torch.float64))
    assert_zeros_hold(model, keeper.masks)


def test_masks_lie_in_memory_as_their_weights_do_and_are_stored_row_by_row():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)).to(memory_format=torch.channels_last)
    masks = half_masks(model, ["1.weight"])
    keeper = MaskKeeper(model, masks)
    assert keeper.masks["1.weight"].is_contiguous(memory_format=torch.channels_last)
    keeper.load_state_dict(keeper.state_dict())
    assert torch.equal(keeper.masks["1.weight"], masks["1.weight"])


def test_the_model_gets_no_hook_no_other_module_and_no_other_name():
    model = mlp()
    names, kinds = list(model.state_dict()), [type(module) for module in model.modules()]
    keeper = MaskKeeper(model, half_masks(model))
    keeper.attach(OPTIMIZERS["SGD"](model.parameters()))
    assert list(model.state_dict()) == names and [type(module) for module in model.modules()] == kinds
    for module in model.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks and not module._backward_hooks
    assert not any(parameter._backward_hooks for parameter in model.parameters())


def test_a_trained_model_is_saved_with_its_keeper(tmp_path):
    model = mlp()
    keeper, optimizer = MaskKeeper(model, half_masks(model)), OPTIMIZERS["AdamW, foreach"](model.parameters())
    keeper.attach(optimizer)
    train(model, optimizer)
    secateur.save(model, keeper, tmp_path / "tuned")
    certificate = secateur.inspect(tmp_path / "tuned")
    assert certificate.ok and certificate.zeros == sum(int((~mask).sum()) for mask in keeper.masks.values())


# --- wrapped models ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outer", [False, True], ids=["keeper of the model", "keeper of what wraps it"])
def test_zeros_hold_in_a_compiled_model_even_when_the_keeper_comes_after_the_first_call(outer):
    model = mlp()
    compiled = torch.compile(model, backend="eager")
    compiled(images()[0][0])
    masks = half_masks(model)
    keeper = MaskKeeper(compiled if outer else model, masks)
    optimizer = OPTIMIZERS["AdamW, foreach"](compiled.parameters())
    keeper.attach(optimizer)
    train(compiled, optimizer)
    assert_zeros_hold(model, masks)
    assert MaskKeeper(compiled).masks.keys() == {"_orig_mod.1.weight", "_orig_mod.3.weight"}


def test_zeros_hold_when_blocks_are_compiled_and_when_the_optimizer_is():
    model = mlp()
    masks = half_masks(model)
    model[1] = torch.compile(model[1], backend="eager")
    keeper = MaskKeeper(model, masks)
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01), weight_decay=0.1, capturable=False)
    keeper.attach(optimizer)
    step = torch.compile(optimizer.step, backend="eager")
    for inputs, targets in images():
        nn.functional.cross_entropy(model(inputs), targets).backward()
        step()
    weights = {"1.weight": model[1]._orig_mod.weight, "3.weight": model[3].weight}
    for name, mask in masks.items():
        assert not weights[name][~mask].any() and weights[name][mask].all()


@pytest.fixture
def one_process():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("outer", [False, True], ids=["keeper of the model", "keeper of what wraps it"])
def test_zeros_hold_under_ddp(outer, one_process):
    model = mlp()
    wrapped = nn.parallel.DistributedDataParallel(model)
    masks = half_masks(model)
    keeper = MaskKeeper(wrapped if outer else model, masks)
    optimizer = OPTIMIZERS["SGD, foreach"](wrapped.parameters())
    keeper.attach(optimizer)
    train(wrapped, optimizer)
    assert_zeros_hold(model, masks)


def test_a_sharded_weight_is_refused(one_process):
    model = fully_shard(mlp(), mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(InputError, match=r"1\.weight is sharded among processes, as FSDP does"):
        MaskKeeper(model, half_masks(mlp()))


def test_masks_named_by_a_wrapper_fit_the_model_and_the_other_way_round():
    model = mlp()
    masks = half_masks(model)
    wrapped = {f"module._orig_mod.{name}": mask for name, mask in masks.items()}
    MaskKeeper(model, wrapped).apply_to_(model)
    assert_zeros_hold(model, masks)
    inside = nn.Sequential()  # a module of the model's own may be called so too
    inside.module = nn.Linear(3, 3)
    assert MaskKeeper(inside, {"module.weight": torch.eye(3, dtype=torch.bool)}).masks.keys() == {"module.weight"}


@pytest.mark.parametrize("ema", ["timm", "torch"])
def test_a_moving_average_becomes_as_sparse_as_the_model(ema):
    model = mlp()
    copies = {
        "timm": lambda: timm.utils.ModelEmaV3(model, decay=0.9),
        "torch": lambda: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)),
    }
    average = copies[ema]()  # of the dense model
    update = average.update if ema == "timm" else average.update_parameters
    masks = half_masks(model)
    keeper, optimizer = MaskKeeper(model, masks), OPTIMIZERS["SGD"](model.parameters())
    keeper.attach(optimizer)
    keeper.apply_to_(average.module)
    for _ in range(3):
        train(model, optimizer, steps=1)
        update(model)
    assert_zeros_hold(average.module, masks)
    keeper.apply_to_(average)  # under its own names
    assert_zeros_hold(average.module, masks)


@pytest.mark.parametrize("name", ["first.weight", "second.weight"])
def test_a_weight_that_two_modules_share_is_kept_under_either_name(name):
    model = Tied()
    keeper = MaskKeeper(model, {name: torch.eye(4, dtype=torch.bool)})
    optimizer = OPTIMIZERS["Adam"](model.parameters())
    keeper.attach(optimizer)
    train(model, optimizer, batches=[(torch.randn(6, 4), torch.arange(6) % 4)])
    assert (model.first.weight != 0).equal(torch.eye(4, dtype=torch.bool))
    both = {"first.weight": torch.eye(4, dtype=torch.bool), "second.weight": torch.ones(4, 4, dtype=torch.bool)}
    with pytest.raises(InputError, match=r"first.weight and second.weight are one weight with two masks that differ"):
        MaskKeeper(model, both)


@pytest.mark.parametrize("name", ["conv1d, stride and dilation", "conv2d, groups", "conv2d, rectangle", "linear"])
def test_zeros_of_every_kind_of_layer_hold(name):
    model, batch = example(name)
    (weight,) = [n for n, p in model.named_parameters() if p.dim() > 1][:1]
    keeper = MaskKeeper(model, half_masks(model, [weight]))
    optimizer = OPTIMIZERS["SGD"](model.parameters())
    keeper.attach(optimizer)
    train(model, optimizer, steps=3, batches=[batch])
    assert_zeros_hold(model, keeper.masks)


# --- attaching --------------------------------------------------------------------------------------------------------


def test_an_optimizer_made_anew_is_attached_again_and_the_old_one_forgotten():
    model = mlp()
    keeper = MaskKeeper(model, half_masks(model))
    optimizer = OPTIMIZERS["SGD"](model.parameters())
    keeper.attach(optimizer)
    keeper.attach(optimizer)
    assert len(optimizer._optimizer_step_post_hooks) == 1
    optimizer = OPTIMIZERS["Adam"](model.parameters())
    keeper.attach(optimizer)
    gc.collect()
    assert list(keeper._handles) == [optimizer]
    train(model, optimizer)
    assert_zeros_hold(model, keeper.masks)


def test_a_detached_keeper_leaves_the_optimizer_alone():
    model = mlp()
    keeper, optimizer = MaskKeeper(model, half_masks(model)), OPTIMIZERS["SGD"](model.parameters())
    keeper.attach(optimizer)
    keeper.detach()
    train(model, optimizer, steps=1)
    with pytest.raises(NumericsError, match=r"1\.weight"):
        keeper.verify()
    keeper.attach(optimizer)
    keeper.verify()


def test_optimizers_may_share_a_model_and_get_more_of_it_later():
    model = mlp()
    masks = half_masks(model)
    keeper = MaskKeeper(model, masks)
    first, second = OPTIMIZERS["SGD"](model[1].parameters()), OPTIMIZERS["Adam"](model[5].parameters())
    keeper.attach(first)
    with pytest.raises(InputError, match=r"Adam holds none of the 2 weights that have masks, such as 1\.weight"):
        keeper.attach(second)
    with pytest.raises(InputError, match="No optimizer holds"):
        keeper.attach()
    second.add_param_group({"params": list(model[3].parameters())})
    keeper.attach(second)
    for _ in range(3):
        train(model, first, steps=1)
        train(model, second, steps=1)
    assert_zeros_hold(model, masks)


def test_an_optimizer_that_does_not_call_back_is_refused():
    class Steps:
        def step(self):
            pass

    with pytest.raises(InputError, match="Steps does not call back after its steps"):
        MaskKeeper(mlp(), half_masks(mlp())).attach(Steps())


# --- masks ------------------------------------------------------------------------------------------------------------


def test_by_default_the_weights_that_are_not_zero_are_kept():
    model = mlp()
    masks = half_masks(model)
    MaskKeeper(model, masks).apply_to_(model)
    keeper = MaskKeeper(model)
    assert {n: m.tolist() for n, m in keeper.masks.items()} == {n: m.tolist() for n, m in masks.items()}
    zeros = sum(int((~m).sum()) for m in masks.values())
    assert keeper.sparsity == zeros / sum(m.numel() for m in masks.values())


def test_other_masks_free_some_weights_which_start_at_zero_and_take_others():
    model = mlp()
    first, second = half_masks(model), half_masks(model, ["1.weight"], seed=1)
    keeper, optimizer = MaskKeeper(model, first), OPTIMIZERS["Adam"](model.parameters())
    keeper.attach(optimizer)
    train(model, optimizer)
    keeper.set_masks_(second)
    weight, state = model[1].weight, optimizer.state[model[1].weight]
    back = second["1.weight"] & ~first["1.weight"]
    assert back.any()
    for tensor in (weight, state["exp_avg"], state["exp_avg_sq"], state["max_exp_avg_sq"]):
        assert not tensor[back].any() and not tensor[~second["1.weight"]].any()
    assert keeper.masks.keys() == {"1.weight"}
    train(model, optimizer)
    assert_zeros_hold(model, second)
    assert model[3].weight.all()


def test_masks_given_are_copied_and_masks_read_are_copies():
    model = mlp()
    masks = half_masks(model)
    keeper = MaskKeeper(model, masks)
    expected = {name: mask.clone() for name, mask in masks.items()}
    masks["1.weight"].fill_(True)
    keeper.masks["3.weight"].fill_(True)
    assert all(torch.equal(keeper.masks[name], expected[name]) for name in expected)


def test_stored_masks_come_back():
    model = mlp()
    keeper = MaskKeeper(model, half_masks(model))
    state = keeper.state_dict()
    assert [(t.dtype, t.numel()) for t in state.values()] == [(torch.uint8, 14), (torch.uint8, 8)]  # 9·12 and 7·9 bits
    other = MaskKeeper(mlp(), half_masks(model, ["5.weight"], seed=2))
    other.load_state_dict(state)
    assert all(torch.equal(other.masks[name], mask) for name, mask in keeper.masks.items())
    assert_zeros_hold(other.model, keeper.masks)


WRONG = {  # masks, and what is said of them
    "a name with a letter wrong": (
        {"1.wieght": torch.ones(9, 12) > 0},
        r"no weight '1.wieght'. Did you mean .*1.weight",
    ),
    "another shape": ({"1.weight": torch.ones(12, 9) > 0}, r"1.weight is torch.bool of shape \(12, 9\); it must be"),
    "numbers": (
        {"1.weight": torch.ones(9, 12)},
        r"1.weight is torch.float32 of shape \(9, 12\); it must be torch.bool",
    ),
    "no tensor": ({"1.weight": [True]}, r"1.weight is list; it must be torch.bool"),
    "none": ({}, r"nothing to keep: Sequential has no zeros and no masks"),
}


@pytest.mark.parametrize("case", WRONG)
def test_masks_that_do_not_fit_are_refused_and_change_nothing(case):
    masks, said = WRONG[case]
    model = mlp()
    with pytest.raises(InputError, match=said):
        MaskKeeper(model, masks)
    keeper = MaskKeeper(model, half_masks(model))
    with pytest.raises(InputError, match=said):
        keeper.set_masks_({**half_masks(model, seed=1), **masks} if masks else {})
    assert all(torch.equal(keeper.masks[name], mask) for name, mask in half_masks(model).items())
    assert model[1].weight.all()


def test_a_model_without_zeros_and_one_with_a_layer_of_nothing_but_zeros_need_masks():
    model = mlp()
    with pytest.raises(InputError, match="nothing to keep: Sequential has no zeros"):
        MaskKeeper(model)
    nn.init.zeros_(model[5].weight)
    with pytest.raises(InputError, match=r"5.weight is zero throughout: pruned, or not trained yet\?"):
        MaskKeeper(model)


def test_another_model_without_the_weights_is_refused():
    model = mlp()
    keeper = MaskKeeper(model, half_masks(model))
    with pytest.raises(InputError, match=r"Linear has no weight '1.weight'"):
        keeper.apply_to_(nn.Linear(3, 3))
    with pytest.raises(InputError, match=r"mask of 1.weight is torch.bool of shape \(9, 12\); it must be"):
        keeper.apply_to_(nn.Sequential(nn.Flatten(), nn.Linear(3, 3), nn.GELU(), nn.Linear(3, 3)))


def test_stored_masks_of_another_model_are_refused():
    keeper = MaskKeeper(mlp(), half_masks(mlp()))
    with pytest.raises(InputError, match=r"The mask of 1.weight does not fit it: 3 bytes cannot be a mask of shape"):
        keeper.load_state_dict({"1.weight": torch.zeros(3, dtype=torch.uint8)})
    with pytest.raises(InputError, match=r"no weight '2.weight'"):
        keeper.load_state_dict({"2.weight": torch.zeros(3, dtype=torch.uint8)})
