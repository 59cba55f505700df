"""What the tables do not say in a form that a program could use: how devices are named and counted.

Each entry is a fact about hardware or a vendor's tool, written by hand, with the reason beside it.
"""

from __future__ import annotations

from typing import Final

VENDORS: Final = {
    "Moore Threads": "mthreads",
    "Iluvatar CoreX": "iluvatar",
    "T-Head (Alibaba)": "thead",
    "FuriosaAI": "furiosa",
    "Untether AI": "untether",
}
"""The vendor's token where it is not simply the name in lower case."""

CLASSES: Final = {"vision_bert": "vision", "llm_decode_batch1": "llm_decode"}
"""Our name of a class where the rating table has another."""

COUNTED: Final = {
    "amd-mi250-128gb": 2,
    "amd-mi250x-128gb": 2,
    "huawei-ascend-310p-duo-96gb": 2,
    "huawei-ascend-910c-128gb": 2,
    "intel-flex-140-12gb": 2,
    "tenstorrent-n300": 2,
}
"""Devices that the vendor's tool shows for one module or board: every figure is divided by it."""

UNMATCHED: Final = {
    "intel-arc-pro-b60-dual-48gb": "its two devices look like two single Arc Pro B60",
    "nvidia-vr200-288gb": "what its tool will call it is not known yet",
    "qualcomm-cloud-ai-100-std": "its tool calls every Cloud AI 100 board by one name",
    "qualcomm-cloud-ai-100-pro": "its tool calls every Cloud AI 100 board by one name",
    "qualcomm-cloud-ai-100-ultra": "its tool calls every Cloud AI 100 board by one name",
}
"""Models without a match rule, and why: a site that has them adds a rule of its own."""

NAMES: Final = {
    "amd-mi300x-192gb": ("AMD Instinct MI300X",),
    "amd-mi308x-192gb": ("AMD Instinct MI308X", "MI308X"),
    "amd-mi100-32gb": ("Arcturus GL-XL [Instinct MI100]",),
    "aws-inferentia2": ("Inferentia2", "inf2"),
    "aws-trainium1": ("Trainium", "Trainium1", "trn1"),
    "aws-trainium2": ("Trainium2", "trn2"),
    "aws-trainium3": ("Trainium3", "trn3"),
    "cpu-6980p": ("Intel(R) Xeon(R) 6980P",),
    "cpu-8480plus": ("Intel(R) Xeon(R) Platinum 8480C", "Intel(R) Xeon(R) Platinum 8480CL"),
    "cpu-nvidia-grace": ("NVIDIA Grace",),
    "google-tpu-v6e": ("TPU v6e",),
    "google-tpu-v7": ("TPU v7",),
    "huawei-ascend-910c-128gb": ("Ascend910", "910C"),
    "intel-gaudi2-96gb": ("HL-225B", "HL-225C", "HL-225D", "HL-225H"),
    "intel-gaudi3-128gb": ("HL-325",),
    "nvidia-h100-sxm5-80gb": ("H100 SXM5 80GB",),
    "nvidia-jetson-agx-orin-64gb": ("Orin (nvgpu)",),
    "tenstorrent-n150": ("n150",),
    "tenstorrent-n300": ("n300 R", "n300"),
}
"""Further names under which tools show a model."""

NO_WINDOW: Final = frozenset({"google", "aws", "apple", "cpu", "groq", "cerebras", "graphcore"})
"""Vendors whose tools often show no memory, or the host's, and whose names are enough."""

UNIFIED: Final = frozenset(
    {
        "amd-mi300a-128gb",
        "amd-ryzen-ai-max-395-128gb",
        "apple-m2-ultra-192gb",
        "apple-m3-ultra-512gb",
        "nvidia-gb10-128gb",
        "nvidia-jetson-agx-orin-64gb",
    }
)
"""Memory is the host's own: no window."""

WINDOWS: Final = {
    "huawei-ascend-310p-24gb": "20GiB..24GiB",
    "huawei-ascend-310p-duo-96gb": "42GiB..48GiB",
    "nvidia-gb200-186gb": "184GiB..192GiB",
}
"""Memory that tools report where it lies outside the usual share of the nominal."""

LOW, HIGH = "0.92", "1.02"
"""Tools report 93 % to 100 % of the nominal memory: ECC and the driver take the rest."""

TOGETHER: Final = {"huawei-ascend-910c-128gb": 2}
"""Devices that are dies of one card, and how many of them that card has."""

LEGAL_COUNTS: Final = {
    "google-tpu-v2": (4,),
    "google-tpu-v3": (4,),
    "google-tpu-v4": (4,),
    "google-tpu-v5e": (1, 4, 8),
    "google-tpu-v5p": (4,),
    "google-tpu-v6e": (1, 4, 8),
    "google-tpu-v7": (4,),
    "huawei-ascend-910a-32gb": (1, 2, 4, 8),
    "huawei-ascend-910c-128gb": (2, 4, 6, 8, 10, 12, 14, 16),
    "aws-trainium1": (1, 2, 4, 8, 16),
    "intel-gaudi2-96gb": (1, 2, 4, 8),
    "intel-gaudi3-128gb": (1, 2, 4, 8),
}
"""Devices of one host that can work together: the wiring of a TPU host, the two dies of one
package (Ascend 910C), the two rings of four of an Ascend 910A host, Trainium's rings, and the
counts that Gaudi's device plugin and collective library are documented for."""

LEGAL_SHAPES: Final = {
    "google-tpu-v4": ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8"),
    "google-tpu-v5e": ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"),
    "google-tpu-v5p": ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8"),
    "google-tpu-v6e": ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"),
    "google-tpu-v7": ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8"),
}
"""Slices that can be asked for: what Google's documentation lists of each TPU, up to 512 chips."""

LINKS: Final = (
    ("NVLink-C2C", "nvlink-c2c"),
    ("bridge", "bridge"),
    ("NVLink", "nvlink"),
    ("Infinity Fabric", "xgmi"),
    ("xGMI", "xgmi"),
    ("HCCS", "hccs"),
    ("ICI", "ici"),
    ("RoCE", "roce"),
    ("NeuronLink", "neuronlink"),
    ("Xe Link", "xelink"),
    ("MLU-Link", "mlulink"),
    ("MetaXLink", "metaxlink"),
    ("MTLink", "mtlink"),
    ("XPU Link", "xpulink"),
    ("BLink", "blink"),
    ("IPU-Link", "ipulink"),
)
"""What an interconnect is called in a request; the first that occurs in its name."""

THREADS: Final = {"cpu-nvidia-grace": (72, 1)}
"""Cores and threads a core, where the table's variant does not say; x86 servers have 2 threads."""

X86_THREADS: Final = 2
"""Hardware threads of a server core: what an operating system counts as a CPU."""
