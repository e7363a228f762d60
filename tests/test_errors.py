"""Errors of tasks that run side by side, as one."""

import pytest

from deviceplugin.errors import ConfigError, LedgerError, VcudaError, first_error


def test_of_a_group_of_errors_the_first_is_raised() -> None:
    nested = ExceptionGroup("outer", [ExceptionGroup("inner", [ConfigError("first"), LedgerError("second")])])
    with pytest.raises(VcudaError) as raised, first_error():
        raise nested
    assert raised.value is nested.exceptions[0].exceptions[0]
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


def test_an_error_alone_stays_what_it_is() -> None:
    with pytest.raises(ConfigError, match="alone"), first_error():
        raise ConfigError("alone")


def test_a_group_with_a_bug_stays_whole() -> None:
    group = ExceptionGroup("tasks", [ConfigError("ours"), RuntimeError("a bug")])
    with pytest.raises(ExceptionGroup) as raised, first_error():
        raise group
    assert raised.value is group
