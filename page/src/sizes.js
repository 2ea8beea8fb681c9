// Sizes in binary units, and what fits into a machine's memory.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function sizeOf(bytes) {
  let [value, unit] = [bytes, 0];
  while (value >= 1023.95 && unit < UNITS.length - 1) [value, unit] = [value / 1024, unit + 1];
  return (unit ? value.toFixed(1) : value) + " " + UNITS[unit];
}

/** Whether a model that needs so much memory fits on a device: {free, total} [bytes]. Empty if that is unknown. */
export function fitOf(needed, device) {
  if (!needed || !device?.total) return "";
  if (needed <= device.free) return "fits";
  return needed <= device.total ? "fits if memory is freed" : "too large for this machine";
}
