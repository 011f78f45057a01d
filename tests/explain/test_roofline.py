"""Which device a name stands for, and the table of devices."""

from __future__ import annotations

import re

import pytest
from tokenlag.explain.roofline import devices, find_device


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM5"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA GH200 480GB", "GH200 96GB"),
        ("NVIDIA GH200 144G HBM3e", "GH200 144GB"),
        ("NVIDIA B200", "B200 SXM"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA B300 SXM6 AC", "B300 SXM"),
        ("NVIDIA GB300", "GB300"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD_Instinct_MI300X_OAM", "MI300X"),
        ("TPU v5 lite", "TPU v5e"),
        ("TPU v6 lite", "TPU v6e"),
    ],
)
def test_a_driver_s_name_is_known(name: str, expected: str) -> None:
    found = find_device(name)
    assert found is not None
    assert found.name == expected


@pytest.mark.parametrize(
    "name",
    [
        None,
        "",
        "NVIDIA H20",
        "NVIDIA L40",
        "NVIDIA A100-SXM-64GB",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA A100-SXM4-80GB MIG 3g.40gb",
        "NVIDIA A10-24Q",
        "NVIDIA L40S-48C",
        "GRID A100-1-5C",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
    ],
)
def test_another_device_or_a_part_of_one_is_unknown(name: str | None) -> None:
    assert find_device(name) is None


def test_figures_are_of_one_device_and_dense() -> None:
    assert len({device.name for device in devices()}) == len(devices())
    for device in devices():
        assert all(pattern == pattern.lower() for pattern in device.match), device.name
        assert device.source, device.name
        assert device.checked is None or re.fullmatch(r"20\d\d-[01]\d", device.checked)
        # One device, not a rack, and no unit lost: 0.1 to 10 TB/s, 10 to 10,000 TFLOP/s.
        assert 1e11 < device.memory_bandwidth < 1e13, device.name
        assert 1e13 < device.bf16_flops < 1e16, device.name
        # FP8 is twice 16-bit arithmetic where there is any; four times would be a sparse figure.
        if device.fp8_flops is not None:
            assert 1.9 < device.fp8_flops / device.bf16_flops < 2.1, device.name


def test_every_pattern_finds_its_own_device() -> None:
    for device in devices():
        for pattern in device.match:
            assert find_device(pattern) is device, pattern
