//! A device that is made of parts of others.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{Device, FileDevice};
use crate::DiskError;

/// A part of a device.
#[derive(Clone)]
pub struct Extent {
    /// The device.
    pub device: Arc<dyn Device>,
    /// The first byte of the part.
    pub offset: u64,
    /// The number of its bytes.
    pub length: u64,
}

/// A device whose bytes are those of its extents, one after the other.
pub struct Extents {
    /// Each extent with the end of its bytes in this device.
    parts: Vec<(u64, Extent)>,
    /// The name in errors.
    name: PathBuf,
}

impl Extents {
    /// Joins extents. They share no bytes; `name` is for errors.
    #[must_use]
    pub fn new(name: &Path, extents: impl IntoIterator<Item = Extent>) -> Self {
        let mut end = 0;
        let extents = extents.into_iter().map(|extent| {
            end += extent.length;
            (end, extent)
        });
        Self { parts: extents.collect(), name: name.into() }
    }

    /// Opens a file as one extent.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn of_file(path: &Path) -> Result<Self, DiskError> {
        let device = Arc::new(FileDevice::open(path)?);
        let length = device.length();
        Ok(Self::new(path, [Extent { device, offset: 0, length }]))
    }

    /// Calls `act` for each extent that has some of these bytes: with its device, the offset there,
    /// and the number of bytes.
    fn each(
        &self,
        what: &'static str,
        offset: u64,
        length: usize,
        mut act: impl FnMut(&dyn Device, u64, usize) -> Result<(), DiskError>,
    ) -> Result<(), DiskError> {
        let end = offset.checked_add(length as u64).filter(|end| *end <= self.length());
        let Some(end) = end else {
            let source = io::Error::new(io::ErrorKind::InvalidInput, "beyond the end");
            return Err(DiskError::Io { what, path: self.name.clone(), source });
        };
        let mut at = offset;
        let first = self.parts.partition_point(|(end, _)| *end <= offset);
        for (part_end, Extent { device, offset, length }) in &self.parts[first..] {
            if at >= end {
                break;
            }
            let count = (*part_end).min(end) - at;
            act(&**device, offset + (at + length - part_end), count as usize)?;
            at += count;
        }
        Ok(())
    }
}

impl Device for Extents {
    fn length(&self) -> u64 {
        self.parts.last().map_or(0, |(end, _)| *end)
    }

    fn read(&self, offset: u64, mut into: &mut [u8]) -> Result<(), DiskError> {
        self.each("reading", offset, into.len(), |device, offset, count| {
            let part = into.split_off_mut(..count).expect("as long as the extents together");
            device.read(offset, part)
        })
    }

    fn write(&self, offset: u64, mut from: &[u8]) -> Result<(), DiskError> {
        self.each("writing", offset, from.len(), |device, offset, count| {
            let part = from.split_off(..count).expect("as long as the extents together");
            device.write(offset, part)
        })
    }

    fn sync(&self) -> Result<(), DiskError> {
        // Extents of one device are often neighbours in the list.
        let is_same = |one: &Arc<dyn Device>, other: &Arc<dyn Device>| std::ptr::addr_eq(&**one, &**other);
        let mut last: Option<&Arc<dyn Device>> = None;
        for (_, Extent { device, .. }) in &self.parts {
            if !last.is_some_and(|last| is_same(last, device)) {
                device.sync()?;
                last = Some(device);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use plexus_sim::Random;

    use super::*;
    use crate::SimulatedDevice;

    /// Returns extents in any order on some devices, which share no bytes.
    fn drawn(random: &mut Random) -> (Vec<Arc<SimulatedDevice>>, Extents) {
        let devices: Vec<_> =
            (0..random.between(1, 3)).map(|_| Arc::new(SimulatedDevice::new(400))).collect();
        let mut used = vec![0; devices.len()];
        let extents = (0..random.between(1, 5)).map(|_| {
            let at = random.below(devices.len() as u64) as usize;
            let (offset, length) = (used[at] + random.below(20), random.between(1, 60));
            used[at] = offset + length;
            Extent { device: devices[at].clone(), offset, length }
        });
        let extents = Extents::new(Path::new("extents"), extents.collect::<Vec<_>>());
        (devices, extents)
    }

    #[test]
    fn extents_are_one_device() {
        for seed in 0..500 {
            let mut random = Random::new(seed);
            let (devices, extents) = drawn(&mut random);
            let length = extents.length();
            let mut flat = vec![0; length as usize];
            for _ in 0..40 {
                let offset = random.below(length + 1);
                let count = random.below(70) as usize;
                let end = offset as usize + count;
                if end > flat.len() {
                    assert!(extents.write(offset, &vec![1; count]).is_err(), "seed {seed}");
                    assert!(extents.read(offset, &mut vec![0; count]).is_err(), "seed {seed}");
                } else if random.percent(50) {
                    let bytes: Vec<u8> = (0..count).map(|_| random.bits() as u8).collect();
                    extents.write(offset, &bytes).unwrap();
                    flat[offset as usize..end].copy_from_slice(&bytes);
                } else {
                    let mut bytes = vec![0; count];
                    extents.read(offset, &mut bytes).unwrap();
                    assert_eq!(bytes, flat[offset as usize..end], "seed {seed}");
                }
            }
            assert!(extents.write(u64::MAX, &[1]).is_err());
            // Every device is synced: a loss of power takes nothing, and nothing else was written.
            extents.sync().unwrap();
            devices.iter().for_each(|device| device.lose_power(|sectors| vec![false; sectors]));
            let mut bytes = vec![0; length as usize];
            extents.read(0, &mut bytes).unwrap();
            assert_eq!(bytes, flat, "seed {seed}");
            let mut outside: usize = 0;
            for device in &devices {
                let mut all = vec![0; 400];
                device.read(0, &mut all).unwrap();
                outside += all.iter().filter(|byte| **byte != 0).count();
            }
            assert_eq!(outside, flat.iter().filter(|byte| **byte != 0).count(), "seed {seed}");
        }
    }
}
