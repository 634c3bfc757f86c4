"""JAX devices for CPU cores."""

import os

import pytest

from mpcvit.cores import devices_for, split_cpu


@pytest.mark.parametrize(
    ("batch", "cores", "devices"), [(128, 2, 2), (128, 64, 8), (6, 4, 3), (7, 4, 1)]
)
def test_devices_divide_the_batch(batch, cores, devices):
    assert devices_for(batch, cores) == devices


def test_flags_of_the_user_stay(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=5 --other")
    split_cpu(128)
    assert os.environ["XLA_FLAGS"] == "--xla_force_host_platform_device_count=5 --other"
    monkeypatch.setenv("XLA_FLAGS", "--other")
    split_cpu(1)
    assert os.environ["XLA_FLAGS"] == "--other --xla_force_host_platform_device_count=1"
