"""Everything about the hardware that an operator or a test may set, with its default."""

from dataclasses import dataclass, field
from pathlib import Path

from deviceplugin.hardware.health import RecoveryRules
from deviceplugin.hardware.kernel_modules import ModuleTools
from deviceplugin.hardware.nvml_library import SYSTEM_ROOT
from deviceplugin.hardware.xid import XidPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareOptions:
    """Periods and budgets are seconds; roots are for containers, which see the node's files below another directory."""

    library: Path | None = None
    driver_root: Path = SYSTEM_ROOT
    cache_path: Path | None = None
    device_root: Path = Path("/dev")
    sys_root: Path = Path("/sys")
    proc_root: Path = Path("/proc")
    sample_period_s: float = 1.0
    rescan_period_s: float = 10.0
    wait_for_driver: bool = False
    modules: ModuleTools = field(default_factory=ModuleTools)
    xids: XidPolicy = field(default_factory=XidPolicy)
    recovery: RecoveryRules = field(default_factory=RecoveryRules)
    call_budget_s: float = 5.0
    open_budget_s: float = 30.0
    """Without persistence mode the first nvmlInit wakes every GPU, which takes seconds."""
    hang_s: float = 30.0
    """A driver that does not answer for so long makes every GPU unhealthy: a new pod would hang like the agent."""
    retry_first_s: float = 1.0
    retry_most_s: float = 60.0
