# SPDX-License-Identifier: Apache-2.0
"""attune under flash_attn's names, for programs that import flash_attn."""

from __future__ import annotations

import importlib
import sys
import types

_NAMES = {"flash_attn": "attune.flash_attn", "flash_attn_interface": "attune.flash_attn_interface"}
_NAMES.update({f"flash_attn.{name}": f"attune.flash_attn.{name}"
               for name in ("bert_padding", "flash_attn_interface", "layers", "layers.rotary")})
_before: dict[str, types.ModuleType | None] = {}


def install() -> None:
    """From now on, `import flash_attn` and `import flash_attn_interface` load attune in this process. Names imported
    from an installed flash_attn before are not affected."""
    for name, ours in _NAMES.items():
        _before.setdefault(name, sys.modules.get(name))
        sys.modules[name] = importlib.import_module(ours)


def uninstall() -> None:
    """Restores the modules that were imported under these names before install(), if any."""
    for name, module in _before.items():
        if module is None:
            sys.modules.pop(name, None)
        else:
            sys.modules[name] = module
    _before.clear()
