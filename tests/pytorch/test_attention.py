"""tessera.scaled_dot_product_attention: values and gradients within the bound, torch's semantics around them, and the
drop-in for torch's own attention on CUDA."""

import math

import pytest
import torch

import tessera
from attention_bound import assert_attention, expected, summed
from tensors import RELEASE, outcome, since

attend = tessera.scaled_dot_product_attention
torch_attend = getattr(torch.nn.functional, "scaled_dot_product_attention", None)


def normal(*shape, device="cpu", requires_grad=False):
    return torch.randn(shape, device=device).requires_grad_(requires_grad)


def operands(batch, heads, queries, keys, dim, device, kv_heads=None):
    shared = (batch, kv_heads or heads, keys, dim)
    return [normal(batch, heads, queries, dim, device=device), normal(*shared, device=device),
            normal(*shared, device=device)]


def with_gradients(function, tensors, gradient):
    """The output, and the gradients by the tensors."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    output = function(*leaves)
    return [output, *torch.autograd.grad(output, leaves, gradient)]


def check(tensors, mask=None, gradient=None, **options):
    if gradient is None:
        gradient = torch.randn_like(attend(*tensors, mask, **options))
    found = with_gradients(lambda *leaves: attend(*leaves, mask, **options), tensors, gradient)
    options.pop("enable_gqa", None)
    assert_attention(found, expected(*tensors, mask, gradient=gradient, **options))
    return found


# ---- Values and gradients -------------------------------------------------------------------------------------------

SIZES = [(1, 1, 1, 1, 1), (2, 3, 40, 40, 16), (1, 2, 1, 65, 64), (1, 1, 65, 1, 32), (2, 2, 33, 70, 5),
         (1, 2, 70, 33, 80), (1, 1, 31, 100, 128), (1, 1, 20, 17, 256), (1, 1, 130, 257, 24)]


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sizes(device, sizes, causal):
    check(operands(*sizes, device), is_causal=causal)


MASKS = {
    "float": lambda d: normal(2, 4, 19, 23, device=d),
    "one row": lambda d: normal(23, device=d)[None],
    "one column": lambda d: normal(19, 1, device=d),
    "matrix": lambda d: normal(19, 23, device=d),
    "of heads": lambda d: normal(4, 1, 23, device=d),
    "of items": lambda d: normal(2, 1, 1, 23, device=d),
    "expanded": lambda d: normal(2, 1, 1, 23, device=d).expand(2, 4, 19, 23),
    "transposed": lambda d: normal(23, 19, device=d).t(),
    "bool": lambda d: torch.rand(2, 4, 19, 23, device=d) < 0.7,
    "bool, of items": lambda d: torch.rand(2, 1, 1, 23, device=d) < 0.7,
    "large": lambda d: 1e4 * normal(19, 23, device=d),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks(device, name):
    check(operands(2, 4, 19, 23, 16, device), MASKS[name](device))


@pytest.mark.parametrize("kind", [torch.bool, torch.float32], ids=str)
def test_rows_without_keys(device, kind):
    """A query that sees no key gives zeros, and has and makes no gradient."""
    mask = torch.rand(19, 23, device=device) < 0.5
    mask[3] = mask[18] = False
    if kind == torch.float32:
        mask = torch.zeros(19, 23, device=device).masked_fill(~mask, -math.inf)
    output, by_query, *_ = check(operands(1, 2, 19, 23, 16, device), mask)
    for row in (3, 18):
        assert not output[:, :, row].any() and not by_query[:, :, row].any()


@pytest.mark.parametrize("scale", [0.5, -0.3, 0.0, 4.0])
def test_scale(device, scale):
    check(operands(1, 2, 20, 21, 16, device), scale=scale)


def test_large_logits(device):
    query, key, value = operands(1, 2, 40, 50, 64, device)
    check([30 * query, key, value])


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_shared_heads(device, kv_heads, causal):
    check(operands(2, 6, 18, 20, 16, device, kv_heads), is_causal=causal, enable_gqa=True)


SHAPES = {
    "2D": ((18, 16), (20, 16), (20, 16), (18, 20)),
    "3D": ((3, 18, 16), (3, 20, 16), (3, 20, 16), (3, 1, 20)),
    "5D": ((2, 3, 2, 18, 16), (2, 3, 2, 20, 16), (2, 3, 2, 20, 16), (2, 1, 20)),
    "keys shared by heads": ((2, 3, 18, 16), (2, 1, 20, 16), (2, 1, 20, 16), (2, 1, 18, 1)),
    "keys shared by items": ((2, 3, 18, 16), (3, 20, 16), (20, 16), (20,)),
    "queries shared": ((18, 16), (2, 3, 20, 16), (2, 1, 20, 16), (1, 3, 18, 20)),
    "5D, broadcast": ((2, 1, 2, 18, 16), (3, 1, 20, 16), (2, 3, 2, 20, 16), (2, 1, 2, 1, 20)),
}


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "mask"])
@pytest.mark.parametrize("name", SHAPES)
def test_leading_dimensions(device, name, masked):
    *shapes, of_mask = SHAPES[name]
    check([normal(*shape, device=device) for shape in shapes], normal(*of_mask, device=device) if masked else None)


def test_strides(device):
    """Views are taken as they are: heads split off a projection, steps, expanded and transposed tensors."""
    packed = normal(2, 40, 3, 4, 16, device=device)
    query, key, value = packed.permute(2, 0, 3, 1, 4).unbind()
    output = check([query, key, value], is_causal=True)[0]
    assert output.transpose(1, 2).is_contiguous()
    columns = value.transpose(2, 3).contiguous().transpose(2, 3)
    check([query[:, :, ::3], key[..., 3:40:2, :].flip(2), columns[:, :, :19]])
    check([query, key[:1].expand_as(key), value[:, :1].expand_as(value)])


def test_expanded_gradient(device):
    """As from sum()."""
    tensors = operands(1, 2, 20, 20, 16, device)
    check(tensors, gradient=torch.ones((), device=device).expand(1, 2, 20, 16))


# ---- What is torch's ------------------------------------------------------------------------------------------------

LEFT = {
    "float64": lambda d: ([tensor.double() for tensor in operands(1, 2, 8, 9, 16, d)], {}),
    "bfloat16": lambda d: ([tensor.bfloat16() for tensor in operands(1, 2, 8, 9, 16, d)], {}),
    "other dimension of values": lambda d: ([*operands(1, 2, 8, 9, 16, d)[:2], normal(1, 2, 9, 8, device=d)], {}),
    "dimension": lambda d: (operands(1, 2, 8, 9, 257, d), {}),
    "no queries": lambda d: (operands(1, 2, 0, 9, 16, d), {}),
    "no keys": lambda d: (operands(1, 2, 8, 0, 16, d), {}),
    "no heads": lambda d: (operands(1, 0, 8, 9, 16, d), {}),
    "gradient of a mask": lambda d: (operands(1, 2, 8, 9, 16, d), {"attn_mask": normal(8, 9, device=d,
                                                                                      requires_grad=True)}),
    "everything dropped": lambda d: (operands(1, 2, 8, 9, 16, d), {"dropout_p": 1.0}),
}


@since(2, 1)
@pytest.mark.parametrize("name", LEFT)
def test_the_rest_is_left_to_torch(device, name):
    tensors, options = LEFT[name](device)
    found = attend(*tensors, **options)
    if any(not tensor.numel() for tensor in tensors):  # torch 2.11 dies of these
        wanted = torch.zeros_like(tensors[0])
    else:
        wanted = torch_attend(*tensors, **options)
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    assert torch.equal(found.isnan(), wanted.isnan()) and torch.equal(found.nan_to_num(), wanted.nan_to_num())
    assert not isinstance(options.get("attn_mask"), torch.Tensor) or found.requires_grad


@since(2, 4)
def test_masks_that_are_no_tensors(device):
    """torch.nn.attention.bias has masks whose tensor says nothing."""
    from torch.nn.attention.bias import causal_lower_right
    query, key, value = operands(1, 2, 8, 12, 16, device)
    bias = causal_lower_right(8, 12)
    assert torch.equal(attend(query, key, value, bias), torch_attend(query, key, value, bias))


ERRORS = {
    "one dimension": lambda q, k, v: (q[0, 0, 0], k, v),
    "types": lambda q, k, v: (q, k.double(), v),
    "dimensions": lambda q, k, v: (q, k[..., :8], v),
    "keys and values": lambda q, k, v: (q, k, v[:, :, :5]),
    "type of the mask": lambda q, k, v: (q, k, v, torch.zeros(8, 9, dtype=torch.int32)),
    "mask and causal": lambda q, k, v: (q, k, v, torch.zeros(8, 9), 0.0, True),
    "dropout": lambda q, k, v: (q, k, v, None, -0.5),
}


@since(2, 1)
@pytest.mark.parametrize("name", ERRORS)
def test_odd_calls_do_as_in_torch(name):
    arguments = ERRORS[name](*operands(1, 2, 8, 9, 16, "cpu"))
    assert outcome(lambda: attend(*arguments).shape) == outcome(lambda: torch_attend(*arguments).shape)


def test_refusals():
    query, key, value = operands(2, 4, 8, 9, 16, "cpu")
    with pytest.raises(RuntimeError, match="must match|broadcast"):
        attend(query, key[:, :3], value[:, :3])
    with pytest.raises(RuntimeError, match="expand"):
        attend(query, key, value, torch.zeros(7, 9))
    primitive = torch.ops.tessera.attention
    for arguments, said in (((query[0], key, value, None, False), "query must be a 4D tensor"),
                            ((query, key, value[..., :8], None, False), "key and value must have the same sizes"),
                            ((query, key[:1], value[:1], None, False), "the same batch and dimension"),
                            ((query, key[:, :3], value[:, :3], None, False), "must be a multiple"),
                            ((query, key, value, None, False, 1.0), r"dropout_p must be in \[0, 1\)")):
        with pytest.raises(RuntimeError, match=said):
            primitive(*arguments)
    with pytest.raises(NotImplementedError, match="key has dtype"):
        primitive(query, key.double(), value, None, False)


def test_before_torch_2():
    """There torch has no attention to leave anything to."""
    if torch_attend:
        pytest.skip("this torch has scaled_dot_product_attention")
    with pytest.raises(NotImplementedError, match="since 2.0"):
        attend(*(tensor.double() for tensor in operands(1, 2, 8, 9, 16, "cpu")))


# ---- Autograd -------------------------------------------------------------------------------------------------------


def test_only_what_is_asked_for(device):
    query, key, value = operands(1, 2, 20, 21, 16, device)
    gradient = torch.randn_like(query)
    of = expected(query, key, value, gradient=gradient)
    for wanted in range(3):
        leaves = [query, key, value]
        leaves[wanted] = leaves[wanted].clone().requires_grad_()
        found, = torch.autograd.grad(attend(*leaves), leaves[wanted], gradient)
        excess = (found.double() - of.values[1 + wanted]).abs() - of.bounds[1 + wanted]
        assert excess.le(0).all()
    with torch.no_grad():
        assert not attend(query.requires_grad_(), key, value).requires_grad


def test_second_derivatives_are_refused(device):
    query, key, value = operands(1, 1, 8, 8, 16, device)
    gradient, = torch.autograd.grad(attend(query.requires_grad_(), key, value).sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        gradient.sum().backward()


def test_graph_is_freed_and_changes_are_noticed(device):
    query, key, value = operands(1, 1, 8, 8, 16, device)
    loss = attend(query.requires_grad_(), key, value).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    for changed in (key, None):
        output = attend(query, key, value)
        (output.detach() if changed is None else changed).mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            output.sum().backward()


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("shape", [(2, 4, 19, 23), (1, 4, 1, 23)], ids=str)
def test_gradient_of_a_bias(device, shape, dropout):
    """tessera::attention has it, for the drop-in."""
    tensors, bias = operands(2, 4, 19, 23, 16, device, kv_heads=2), normal(*shape, device=device)
    kept = kept_weights(tensors, bias, dropout, device)
    torch.manual_seed(3)
    output, *_ = torch.ops.tessera.attention(*tensors, bias.requires_grad_(), True, dropout)
    gradient = torch.randn_like(output)
    found, = torch.autograd.grad(output, bias, gradient)
    assert found.stride(-2) % 16 == 0
    of = expected(*tensors, bias, gradient=gradient, kept=kept)
    exact, bound = summed(*of.by_scores, bias)
    assert (found.double() - exact).abs().le(bound).all()


# ---- Dropout --------------------------------------------------------------------------------------------------------


def kept_weights(tensors, bias, dropout, device, seed=3):
    """The factor of each weight: the same calls with columns of the identity as values tell which weights are left."""
    query, key, value = tensors
    heads, keys, dim = query.shape[1], *key.shape[2:]
    columns = torch.eye(keys, -(-keys // dim) * dim, device=device).split(dim, 1)
    weights = []
    for column in columns:
        torch.manual_seed(seed)
        weights.append(torch.ops.tessera.attention(query, key, column.expand_as(key), bias, False, dropout)[0])
    found = torch.cat(weights, -1)[..., :keys]
    assert found.shape[1] == heads
    return (found != 0).double() / (1 - round(dropout * 65536) / 65536)


@pytest.mark.parametrize("dropout", [0.1, 0.5, 0.9])
def test_dropout_share(device, dropout):
    """Of so many weights the share that is kept lies within five standard deviations."""
    tensors = operands(2, 4, 128, 128, 16, device)
    kept = kept_weights(tensors, None, dropout, device) > 0
    deviation = math.sqrt(dropout * (1 - dropout) / kept.numel())
    assert abs(kept.double().mean().item() - (1 - dropout)) < 5 * deviation
    for part in (kept[0, 0], kept[:, :, 0], kept[..., 0]):
        deviation = math.sqrt(dropout * (1 - dropout) / part.numel())
        assert abs(part.double().mean().item() - (1 - dropout)) < 5 * deviation


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_dropout_forward_and_backward_agree(device, causal):
    tensors = operands(2, 2, 40, 50, 16, device)
    kept, gradient = kept_weights(tensors, None, 0.4, device), torch.randn_like(tensors[0])
    torch.manual_seed(3)
    found = with_gradients(lambda *leaves: attend(*leaves, dropout_p=0.4, is_causal=causal), tensors, gradient)
    assert_attention(found, expected(*tensors, is_causal=causal, gradient=gradient, kept=kept))


def test_dropout_follows_torch_s_generator(device):
    tensors = operands(1, 2, 40, 40, 16, device)
    torch.manual_seed(7)
    first, second = (attend(*tensors, dropout_p=0.5) for _ in range(2))
    torch.manual_seed(7)
    again = attend(*tensors, dropout_p=0.5)
    assert torch.equal(first, again) and not torch.equal(first, second)
    state = torch.get_rng_state() if device == "cpu" else torch.cuda.get_rng_state()
    third = attend(*tensors, dropout_p=0.5)
    (torch.set_rng_state if device == "cpu" else torch.cuda.set_rng_state)(state)
    assert torch.equal(third, attend(*tensors, dropout_p=0.5)) and torch.equal(third, second)


# ---- As torch wants an operator to be -------------------------------------------------------------------------------


def calls(device):
    query, key, value = operands(2, 4, 9, 11, 16, device, kv_heads=2)
    leaves = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
    forward, backward = torch.ops.tessera.attention.default, torch.ops.tessera.attention_backward.default
    results = forward(query, key, value, None, True)
    whole = torch.ops.tessera.scaled_dot_product_attention.default
    return {
        "plain": (forward, (query, key, value, None, False), {}),
        "gradients": (forward, (*leaves, None, True, 0.0, True), {"scale": 0.5}),
        "bias": (forward, (*leaves, normal(1, 4, 1, 11, device=device), True), {}),
        "dropout": (forward, (query, key, value, None, True, 0.5), {}),
        "backward": (backward, (torch.randn_like(query), query, key, value, None, *results, 0.0,
                                [True, False, True, False]), {}),
        "whole": (whole, (*leaves, torch.ones(9, 11, dtype=torch.bool, device=device)), {"enable_gqa": True}),
    }


@since(2, 4)
@pytest.mark.parametrize("name", ["plain", "gradients", "bias", "dropout", "backward", "whole"])
def test_opcheck(device, name):
    operator, arguments, keywords = calls(device)[name]
    if RELEASE < (2, 5) and name == "whole":
        pytest.skip("torch 2.5 is the first to have enable_gqa")
    assert set(torch.library.opcheck(operator, arguments, keywords).values()) == {"SUCCESS"}


@since(2, 4)
@pytest.mark.parametrize("lse", [False, True])
def test_layouts_are_torch_s(device, lse):
    """What torch's meta functions promise of its own operators holds for ours, which take their place."""
    sizes, bias = [(2, 3, 37, 16), (2, 3, 41, 16), (2, 3, 41, 16)], (2, 3, 37, 41)
    found = torch.ops.tessera.attention(*(normal(*shape, device=device) for shape in sizes), None, lse)
    wanted = torch.ops.aten._scaled_dot_product_efficient_attention(
        *(torch.empty(shape, device="meta") for shape in sizes), None, lse)
    for ours, theirs in zip(found, wanted):
        assert (ours.shape, ours.stride(), ours.dtype) == (theirs.shape, theirs.stride(), theirs.dtype)
    assert not lse or (found[1][..., 37:] == math.inf).all()
    if not lse:
        return
    arguments = [normal(*shape, device=device) for shape in (sizes[0], *sizes, bias)] + [*found, 0.0, [True] * 4]
    on_meta = [tensor.to("meta") if isinstance(tensor, torch.Tensor) else tensor for tensor in arguments]
    found = torch.ops.tessera.attention_backward(*arguments)
    wanted = torch.ops.aten._scaled_dot_product_efficient_attention_backward(*on_meta)
    for ours, theirs in zip(found, wanted):
        assert (ours.shape, ours.stride()) == (theirs.shape, theirs.stride())


@since(2, 4)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(device, backend):
    """One graph for all lengths, with the same bits, forward and backward."""
    def function(query, key, value):
        return attend(query * 2, key, value, is_causal=True) + 1

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=backend)
    for length in (9, 13) if backend == "aot_eager" else (9, ):
        tensors = operands(2, 3, length, length, 16, device)
        gradient = torch.randn_like(tensors[0])
        for eager, graph in zip(with_gradients(function, tensors, gradient),
                                with_gradients(compiled, tensors, gradient)):
            assert torch.equal(eager, graph)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@since(2, 11)
def test_compiled_autograd(device):
    torch._dynamo.reset()
    tensors = operands(2, 3, 9, 9, 16, device)
    gradients = []
    for compiled in (False, True):
        leaves = [tensor.clone().requires_grad_(i != 1) for i, tensor in enumerate(tensors)]
        with torch._dynamo.config.patch(compiled_autograd=compiled):
            torch.compile(lambda *leaves: attend(*leaves).square().sum().backward(), backend="eager")(*leaves)
        gradients.append([leaf.grad for leaf in leaves])
    for eager, graph in zip(*gradients):
        assert eager is graph is None or torch.equal(eager, graph)


@since(2, 4)
def test_meta():
    query = torch.empty(2, 4, 9, 16, device="meta", requires_grad=True)
    output = attend(query, query, query)
    output.sum().backward()
    assert output.device.type == "meta" and output.shape == query.grad.shape == query.shape


vmapped = pytest.mark.skipif(not hasattr(torch.library, "register_vmap"), reason="this torch has no register_vmap")


@vmapped
def test_vmap(device):
    query, key, value = operands(6, 2, 9, 11, 16, device)
    mask = normal(6, 1, 9, 11, device=device)
    split = [tensor.unflatten(0, (3, 2)) for tensor in (query, key, value, mask)]
    expected_output = attend(query, key, value, mask)
    assert torch.equal(torch.vmap(attend)(*split).flatten(0, 1), expected_output)
    moved = torch.vmap(attend, in_dims=(1, 1, 1, 1), out_dims=2)(*(t.transpose(0, 1) for t in split))
    assert torch.equal(moved.movedim(2, 0).flatten(0, 1), expected_output)
    shared = torch.vmap(attend, in_dims=(0, None, None, None))(split[0], key[:2], value[:2], mask[:1, :, :1])
    assert torch.equal(shared[1], attend(split[0][1], key[:2], value[:2], mask[:1, :, :1]))
    rows = torch.vmap(lambda q, k, v: attend(q, k, v))(query[:, 0], key[:, 0], value[:, 0])
    assert torch.equal(rows, attend(query[:, :1], key[:, :1], value[:, :1])[:, 0])


@vmapped
def test_torch_func(device):
    query, key, value = operands(3, 2, 9, 11, 16, device)

    def loss(q, k, v):
        return attend(q, k, v, is_causal=True).square().sum()

    gradients = torch.func.grad(loss, argnums=(0, 1, 2))(query, key, value)
    each = torch.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(query, key, value)
    leaves = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
    wanted = torch.autograd.grad(loss(*leaves), leaves)
    for found, mapped, exact in zip(gradients, each, wanted):
        assert torch.equal(found, exact) and torch.equal(mapped, exact)


@vmapped
def test_vmap_with_dropout():
    query, key, value = operands(3, 2, 9, 11, 16, "cpu")
    function = torch.vmap(lambda q, k, v: attend(q, k, v, dropout_p=0.5), randomness="different")
    shared = function(query[:1].expand(3, 2, 9, 16), key[:1].expand(3, 2, 11, 16), value[:1].expand(3, 2, 11, 16))
    assert not torch.equal(shared[0], shared[1])
    with pytest.raises(RuntimeError, match="randomness"):
        torch.vmap(lambda q, k, v: attend(q, k, v, dropout_p=0.5))(query, key, value)


def test_autocast_leaves_float32_alone(device):
    tensors = operands(1, 2, 8, 9, 16, device)
    with torch.autocast(device, dtype=torch.bfloat16):
        found = attend(*tensors)
    assert found.dtype == torch.float32 and torch.equal(found, attend(*tensors))


# ---- The drop-in ----------------------------------------------------------------------------------------------------


def counts():
    stats = tessera.stats()
    by_direction = {"forward": 0, "backward": 0}
    for kind in stats.attention:
        by_direction[kind.direction] += kind.calls
    return by_direction["forward"], by_direction["backward"], sum(stats.attention_passed.values())


@pytest.fixture
def drop_in(gpu):
    if RELEASE < (2, 4):
        pytest.skip("torch 2.4 is the first whose attention is taken over")
    tessera.enable(always=True)


def test_cpu_attention_stays_torch_s():
    if not torch_attend:
        pytest.skip("this torch has no scaled_dot_product_attention")
    tensors = operands(1, 2, 40, 40, 16, "cpu")
    wanted = torch_attend(*tensors)
    with tessera.enabled(devices="cpu", always=True):
        assert torch.equal(torch_attend(*tensors), wanted)
    assert counts() == (0, 0, 0) and "attentions" not in str(tessera.stats())


DROP_IN = {"plain": {}, "causal": {"is_causal": True}, "scale": {"scale": 0.3},
           "mask": {"attn_mask": lambda d: normal(2, 1, 1, 72, device=d)},
           "bool": {"attn_mask": lambda d: torch.rand(72, 72, device=d) < 0.7}}


@pytest.mark.parametrize("name", DROP_IN)
def test_drop_in(drop_in, name):
    options = {key: value("cuda") if callable(value) else value for key, value in DROP_IN[name].items()}
    mask = options.pop("attn_mask", None)
    tensors = operands(2, 3, 72, 72, 64, "cuda")
    gradient = torch.randn_like(tensors[0])
    found = with_gradients(lambda *leaves: torch_attend(*leaves, mask, **options), tensors, gradient)
    assert counts() == (1, 1, 0)
    assert_attention(found, expected(*tensors, mask, gradient=gradient, **options))
    tessera.disable()
    wanted = with_gradients(lambda *leaves: torch_attend(*leaves, mask, **options), tensors, gradient)
    assert [tensor.stride() for tensor in found] == [tensor.stride() for tensor in wanted]


def test_drop_in_leaves_the_rest(drop_in):
    halves = [tensor.half() for tensor in operands(1, 2, 72, 72, 64, "cuda")]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION):
        torch_attend(*halves)
        torch_attend(*operands(1, 2, 72, 72, 64, "cuda")[:2], normal(1, 2, 72, 32, device="cuda"))
    passed = tessera.stats().attention_passed
    assert counts() == (0, 0, 2) and passed["not float32"] == passed["empty or unusual shape or out"] == 1


def test_drop_in_on_small_attention(gpu):
    with tessera.enabled():
        torch_attend(*operands(1, 1, 8, 8, 16, "cuda"))
    assert counts() == (0, 0, 1) and tessera.stats().attention_passed["torch is faster"] == 1


@pytest.mark.parametrize("before, after", [(True, False), (False, True)], ids=["off in between", "on in between"])
def test_switched_between_forward_and_backward(gpu, before, after):
    """A backward pass that follows the other library's forward pass; with dropout it is of the same library."""
    tensors, gradient = operands(2, 3, 72, 72, 64, "cuda"), normal(2, 3, 72, 64, device="cuda")
    for dropout in (0.0, 0.4):
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        tessera.enable(always=True) if before else tessera.disable()
        output = torch_attend(*leaves, dropout_p=dropout)
        tessera.enable(always=True) if after else tessera.disable()
        gradients = torch.autograd.grad(output, leaves, gradient)
        if not dropout:
            assert_attention([output, *gradients], expected(*tensors, gradient=gradient))
        # The gradient by v is weights^T gradient, with the weights that made the output: v's product with it is the
        # output's with the gradient. Bounds grow with the weights that are kept, so those of all kept hold for any.
        of = expected(*tensors, gradient=gradient, kept=torch.full((2, 3, 72, 72), 1 / (1 - dropout), device="cuda"))
        allowed = (gradient.abs() * of.bounds[0]).sum() + (tensors[2].abs() * of.bounds[3]).sum()
        left, right = (gradients[2].double() * tensors[2]).sum(), (output.double() * gradient).sum()
        assert abs(left - right) <= allowed


def test_drop_in_with_dropout(drop_in):
    tensors = operands(2, 3, 72, 72, 64, "cuda")
    gradient = torch.randn_like(tensors[0])
    kept = kept_weights(tensors, None, 0.25, "cuda")
    torch.manual_seed(3)
    found = with_gradients(lambda *leaves: torch_attend(*leaves, dropout_p=0.25), tensors, gradient)
    assert counts() == (1, 1, 0)
    assert_attention(found, expected(*tensors, gradient=gradient, kept=kept))


@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_drop_in_with_the_gradient_of_a_mask(drop_in, dropout):
    """Without dropout torch's backward follows our forward; with it torch does both."""
    tensors = [tensor.requires_grad_() for tensor in operands(2, 3, 72, 72, 64, "cuda")]
    mask = normal(2, 3, 72, 72, device="cuda", requires_grad=True)
    output = torch_attend(*tensors, mask, dropout_p=dropout)
    gradients = torch.autograd.grad(output.square().sum(), [*tensors, mask])
    assert counts() == ((1, 0, 1) if not dropout else (0, 0, 1))
    if dropout:
        return
    leaves = [tensor.detach().double().requires_grad_() for tensor in (*tensors, mask)]
    q, k, v, bias = leaves
    exact = torch.softmax(q @ k.transpose(2, 3) / 8 + bias, -1) @ v
    for found, wanted in zip(gradients, torch.autograd.grad(exact.square().sum(), leaves)):
        assert (found.double() - wanted).norm() <= 1e-5 * wanted.norm()  # torch's kernels promise nothing


def test_drop_in_in_a_graph(drop_in):
    tensors = [tensor.requires_grad_() for tensor in operands(1, 2, 72, 72, 64, "cuda")]
    torch_attend(*tensors).sum().backward()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.autograd.grad(torch_attend(*tensors).square().sum(), tensors)
    torch.cuda.current_stream().wait_stream(side)
    tessera.reset_stats()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gradients = torch.autograd.grad(torch_attend(*tensors).square().sum(), tensors)
    assert counts() == (1, 1, 0)
    graph.replay()
    torch.cuda.synchronize()
    for found, wanted in zip(gradients, torch.autograd.grad(torch_attend(*tensors).square().sum(), tensors)):
        assert torch.equal(found, wanted)


def test_dropout_in_a_graph_is_torch_s(drop_in):
    """Every replay drops other weights."""
    tensors = operands(1, 2, 72, 72, 64, "cuda")
    torch_attend(*tensors, dropout_p=0.5)
    torch.cuda.synchronize()
    for function in (torch_attend, attend):
        tessera.reset_stats()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = function(*tensors, dropout_p=0.5)
        assert counts()[0] == 0
        graph.replay()
        first = output.clone()
        graph.replay()
        assert not torch.equal(output, first)


@since(2, 4)
def test_drop_in_under_the_compiler(gpu):
    def function(query, key, value):
        return torch_attend(query, key, value, is_causal=True).square()

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True)
    tensors = operands(2, 3, 72, 72, 64, "cuda")
    with_gradients(compiled, tensors, torch.ones_like(tensors[0]))
    assert counts() == (0, 0, 0)
    with tessera.enabled(always=True):
        found = with_gradients(compiled, tensors, torch.ones_like(tensors[0]))
        wanted = with_gradients(function, tensors, torch.ones_like(tensors[0]))
    assert counts() == (2, 2, 0)
    for graph, eager in zip(found, wanted):
        assert torch.equal(graph, eager)
