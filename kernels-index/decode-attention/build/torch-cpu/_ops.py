import torch

ops = torch.ops._decode_attention_cpu_76c7078


def add_op_namespace_prefix(op_name: str) -> str:
    return f"_decode_attention_cpu_76c7078::{op_name}"
