import torch

ops = torch.ops._attention_cpu_900bdb8


def add_op_namespace_prefix(op_name: str) -> str:
    return f"_attention_cpu_900bdb8::{op_name}"
