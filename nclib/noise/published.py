"""Noise-index files of the papers, by the first 16 hex digits of the file's SHA-256."""

from __future__ import annotations

PUBLISHED: dict[str, tuple[str, float]] = {
    "c15283bc28e31f81": ("RCL/DECL f30k", 0.2),
    "fcc76de55d2c2559": ("RCL/DECL f30k", 0.4),
    "e7d425e0129c403b": ("RCL/DECL f30k", 0.5),
    "bde4026b38d17289": ("RCL/DECL f30k", 0.6),
    "64b39dd587545e0e": ("RCL/DECL f30k", 0.8),
    "890451fe01c96c65": ("RCL/DECL coco", 0.2),
    "0be1fc344fb89b69": ("RCL/DECL coco", 0.4),
    "846956d46826148f": ("RCL/DECL coco", 0.5),
    "ea5ab664f5defd1b": ("RCL/DECL coco", 0.6),
    "5bb1cdd4fb9a86a1": ("RCL/DECL coco", 0.8),
    "9ef71783b3488770": ("L2RM f30k", 0.2),
    "fd23fe1b62bcfe01": ("L2RM f30k", 0.4),
    "5d8b61c1cf3656f1": ("L2RM f30k", 0.6),
    "ad298d3394d4d4b2": ("L2RM f30k", 0.8),
    "cdd8b019e69dc134": ("BiCro f30k", 0.2),
    "702bd86f858d0495": ("BiCro f30k", 0.4),
    "3633f6ff0425940c": ("BiCro f30k", 0.5),
    "24fc7258b81eb856": ("BiCro f30k", 0.6),
}
"""Prefix to (whose file and for which data, nominal rate)."""
