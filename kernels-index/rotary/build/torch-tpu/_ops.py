import torch

ops = torch.ops._rotary_tpu_26cae57


def add_op_namespace_prefix(op_name: str) -> str:
    return f"_rotary_tpu_26cae57::{op_name}"
