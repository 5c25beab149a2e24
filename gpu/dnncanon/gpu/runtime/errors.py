"""What the run time raises."""


class DeviceError(RuntimeError):
    """The device that was asked for is not there, or an array lives where the device cannot reach it."""
