# SPDX-License-Identifier: Apache-2.0
"""attune under flash_attn's names, for programs that import flash_attn."""

from __future__ import annotations

from .._aliases import Aliases

_ALIASES = Aliases({
    "flash_attn": "attune.flash_attn", "flash_attn_interface": "attune.flash_attn_interface",
    **{f"flash_attn.{name}": f"attune.flash_attn.{name}"
       for name in ("bert_padding", "flash_attn_interface", "layers", "layers.rotary")}})


def install() -> None:
    """From now on, `import flash_attn` and `import flash_attn_interface` load attune in this process. Names imported
    from an installed flash_attn before are not affected."""
    _ALIASES.install()


def uninstall() -> None:
    """Restores the modules that were imported under these names before install(), if any."""
    _ALIASES.uninstall()
