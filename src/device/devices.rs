//! The devices that this process may use. To look at them makes no context.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};

use cudarc::driver::sys::{self, CUdevice_attribute};

use super::driver::{Driver, check};
use super::error::DeviceError;
use super::uuid::DeviceUuid;

/// One device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    pub(super) ordinal: c_int,
    /// Its name in every process.
    pub uuid: DeviceUuid,
    /// What it is, in the driver's words.
    pub name: String,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Whether its memory can be exported as descriptors.
    pub descriptors: bool,
}

/// Every visible device, in the driver's order.
///
/// # Errors
/// What the driver says.
pub fn visible(_: &Driver) -> Result<Vec<Device>, DeviceError> {
    let mut count = 0;
    // SAFETY: as the module `device` says.
    let result = unsafe { sys::cuDeviceGetCount(&mut count) };
    check("cuDeviceGetCount", result, || "this process".into())?;
    (0..count).map(device).collect()
}

/// The visible device with this UUID.
///
/// # Errors
/// [`DeviceError::UnknownDevice`] with those that are visible, [`DeviceError::AmbiguousDevice`], or what the driver says.
pub fn find(driver: &Driver, uuid: DeviceUuid) -> Result<Device, DeviceError> {
    let all = visible(driver)?;
    let mut found: Vec<&Device> = all.iter().filter(|device| device.uuid == uuid).collect();
    match (found.pop(), found.len()) {
        (Some(device), 0) => Ok(device.clone()),
        (Some(_), others) => Err(DeviceError::AmbiguousDevice {
            uuid,
            count: others + 1,
        }),
        (None, _) => Err(DeviceError::UnknownDevice {
            wanted: uuid,
            visible: all.iter().map(|device| device.uuid).collect(),
        }),
    }
}

fn device(index: c_int) -> Result<Device, DeviceError> {
    let about = || format!("device {index}");
    let mut ordinal = 0;
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    let mut name = [0 as c_char; 128];
    let mut memory = 0usize;
    let mut descriptors = 0;
    let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
    // SAFETY: as the module `device` says; the name's room is said with it.
    unsafe {
        check("cuDeviceGet", sys::cuDeviceGet(&mut ordinal, index), about)?;
        check(
            "cuDeviceGetUuid_v2",
            sys::cuDeviceGetUuid_v2(&mut uuid, ordinal),
            about,
        )?;
        let room = name.len() as c_int;
        check(
            "cuDeviceGetName",
            sys::cuDeviceGetName(name.as_mut_ptr(), room, ordinal),
            about,
        )?;
        check(
            "cuDeviceTotalMem_v2",
            sys::cuDeviceTotalMem_v2(&mut memory, ordinal),
            about,
        )?;
        let asked = sys::cuDeviceGetAttribute(&mut descriptors, attribute, ordinal);
        check("cuDeviceGetAttribute", asked, about)?;
    }
    let name: Vec<u8> = name
        .iter()
        .map(|&letter| letter as u8)
        .take_while(|&letter| letter != 0)
        .collect();
    Ok(Device {
        ordinal,
        uuid: DeviceUuid(uuid.bytes.map(|byte| byte as u8)),
        name: String::from_utf8_lossy(&name).into_owned(),
        memory_bytes: memory as u64,
        descriptors: descriptors != 0,
    })
}
