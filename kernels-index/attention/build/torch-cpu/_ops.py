import torch

ops = torch.ops._attention_cpu_f33652b


def add_op_namespace_prefix(op_name: str) -> str:
    return f"_attention_cpu_f33652b::{op_name}"
