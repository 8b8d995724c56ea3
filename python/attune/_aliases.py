# SPDX-License-Identifier: Apache-2.0
"""attune under the names of other packages, for programs that import those."""

from __future__ import annotations

import importlib
import sys
import types


class Aliases:
    """Modules by the names that they replace."""

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names
        self._before: dict[str, types.ModuleType | None] = {}

    def install(self) -> None:
        for name, ours in self._names.items():
            self._before.setdefault(name, sys.modules.get(name))
            sys.modules[name] = importlib.import_module(ours)

    def uninstall(self) -> None:
        """Restores the modules that had these names before."""
        for name, module in self._before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module
        self._before.clear()
