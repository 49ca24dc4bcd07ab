"""What a connector tells a server that keeps a chunk size per model."""

from types import SimpleNamespace

import pytest

from kvasir.vllm import identity


def config(**changes):
    fields = {"model": "org/model", "tp": 1, "cache_dtype": "auto"} | changes
    return SimpleNamespace(
        model_config=SimpleNamespace(model=fields["model"], dtype="torch.bfloat16"),
        cache_config=SimpleNamespace(cache_dtype=fields["cache_dtype"]),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=fields["tp"], pipeline_parallel_size=1, decode_context_parallel_size=1
        ),
    )


def test_all_roles_of_an_engine_name_the_same_domain():
    one = identity.binding_domain(config(), b"weights", [544, 0, 64])
    assert len(one) == 32
    assert one == identity.binding_domain(config(), b"weights", (span for span in (64, 544, 544)))


@pytest.mark.parametrize(
    "other",
    [
        lambda: identity.binding_domain(config(model="org/other"), b"weights", [544]),
        lambda: identity.binding_domain(config(tp=2), b"weights", [544]),
        lambda: identity.binding_domain(config(cache_dtype="fp8"), b"weights", [544]),
        lambda: identity.binding_domain(config(), b"other weights", [544]),
        lambda: identity.binding_domain(config(), b"weights", [640]),
        lambda: identity.binding_domain(config(), b"weights", [54, 4]),
    ],
)
def test_whatever_tells_models_apart_tells_their_domains_apart(other):
    assert other() != identity.binding_domain(config(), b"weights", [544])
