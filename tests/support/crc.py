"""CRC-32C (Castagnoli), from its definition."""

_TABLE = []
for value in range(256):
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    _TABLE.append(value)


def crc32c(data: bytes) -> int:
    """The checksum of some bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[crc & 255 ^ byte]
    return crc ^ 0xFFFFFFFF
