"""Shapes of real models, each with the place its numbers come from."""

from dataclasses import dataclass

from haaw.memory.shape import CacheShape


@dataclass(frozen=True)
class Preset:
    """A named shape. `parameters` is 0 where no weights are meant; `weight_bytes` is bytes of one parameter."""

    name: str
    title: str
    shape: CacheShape
    context: int
    parameters: int
    weight_bytes: float
    source: str

    @property
    def weights_bytes(self) -> int:
        """Bytes of the weights as published."""
        return int(self.parameters * self.weight_bytes)


PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            "reference",
            "Reference case",
            CacheShape(32, 8, 128, 2),
            8192,
            0,
            2,
            "the case that HAAW checks itself with: 131,072 bytes a token, 1 GiB at 8,192 tokens",
        ),
        Preset(
            "smollm2-135m",
            "SmolLM2-135M",
            CacheShape(30, 3, 64, 2),
            8192,
            134_515_008,
            2,
            "config.json of HuggingFaceTB/SmolLM2-135M-Instruct (30 layers, 3 KV heads, width 576 of 9 heads)",
        ),
        Preset(
            "gpt2",
            "GPT-2 small",
            CacheShape(12, 12, 64, 4),
            1024,
            124_439_808,
            4,
            "config.json of openai-community/gpt2 (n_layer 12, n_head 12, n_embd 768); float32 as published",
        ),
        Preset(
            "mistral-7b-v0.1",
            "Mistral 7B v0.1",
            CacheShape(32, 8, 128, 2, window=4096),
            32_768,
            7_241_732_096,
            2,
            "config.json of mistralai/Mistral-7B-v0.1 (sliding_window 4096); Jiang et al. 2023, arXiv:2310.06825",
        ),
        Preset(
            "llama-3.1-8b",
            "Llama 3.1 8B",
            CacheShape(32, 8, 128, 2),
            131_072,
            8_030_261_248,
            2,
            "config.json of meta-llama/Llama-3.1-8B; Grattafiori et al. 2024, arXiv:2407.21783, table 3",
        ),
        Preset(
            "gemma-3-27b",
            "Gemma 3 27B",
            CacheShape(62, 16, 128, 2, window=1024, pattern="wwwwwf"),
            131_072,
            27_009_346_304,
            2,
            "text_config of google/gemma-3-27b-pt, five layers with the window for one without; Gemma Team 2025, "
            "arXiv:2503.19786; weights of the text model alone",
        ),
        Preset(
            "llama-3.1-405b",
            "Llama 3.1 405B",
            CacheShape(126, 8, 128, 2),
            131_072,
            405_853_388_800,
            2,
            "config.json of meta-llama/Llama-3.1-405B; Grattafiori et al. 2024, arXiv:2407.21783, table 3",
        ),
        Preset(
            "deepseek-v3",
            "DeepSeek-V3",
            CacheShape(61, 128, 128, 2, latent_width=512, rope_width=64),
            163_840,
            671_026_419_200,
            1,
            "config.json of deepseek-ai/DeepSeek-V3 (kv_lora_rank 512, qk_rope_head_dim 64, FP8 weights); "
            "70.272 KB a token in arXiv:2505.09343, table 1",
        ),
    )
}
