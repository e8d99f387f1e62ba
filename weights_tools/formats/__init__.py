"""Weights files of several formats behind one interface, `TensorFile`; imports nothing of `haaw`."""

from weights_tools.formats.errors import FormatError
from weights_tools.formats.gguf import GGUFFile, open_gguf
from weights_tools.formats.llama2c import Llama2cFile, open_llama2c, read_llama2c_tokenizer
from weights_tools.formats.safetensors_file import SafetensorsFile, open_safetensors, open_sharded
from weights_tools.formats.tensor_file import TensorFile, TensorInfo

__all__ = [
    "FormatError",
    "GGUFFile",
    "Llama2cFile",
    "SafetensorsFile",
    "TensorFile",
    "TensorInfo",
    "open_gguf",
    "open_llama2c",
    "open_safetensors",
    "open_sharded",
    "read_llama2c_tokenizer",
]
