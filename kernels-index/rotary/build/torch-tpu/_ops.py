import torch

ops = torch.ops._rotary_tpu_8e0a57b


def add_op_namespace_prefix(op_name: str) -> str:
    return f"_rotary_tpu_8e0a57b::{op_name}"
