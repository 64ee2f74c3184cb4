//! Types of elements that torch and XLA share bit for bit, by the numbers that each side has for them.

use std::ffi::c_int;

/// A shared type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Element(&'static Numbers);

#[derive(Debug, PartialEq, Eq, Hash)]
struct Numbers {
    /// `c10::ScalarType`.
    torch: i32,
    /// `PJRT_Buffer_Type`.
    pjrt: c_int,
    /// `DLDataTypeCode`.
    dlpack: u8,
    bits: u8,
}

const fn numbers(torch: i32, pjrt: c_int, dlpack: u8, bits: u8) -> Numbers {
    Numbers {
        torch,
        pjrt,
        dlpack,
        bits,
    }
}

/// From c10/core/ScalarType.h, xla/pjrt/c/pjrt_c_api.h and dlpack.h. The 64-bit types are missing:
/// JAX has 32 bits here.
static ELEMENTS: [Numbers; 16] = [
    numbers(0, 6, 1, 8),    // uint8
    numbers(1, 2, 0, 8),    // int8
    numbers(2, 3, 0, 16),   // int16
    numbers(3, 4, 0, 32),   // int32
    numbers(5, 10, 2, 16),  // float16
    numbers(6, 11, 2, 32),  // float32
    numbers(9, 14, 5, 64),  // complex64
    numbers(11, 1, 6, 8),   // bool
    numbers(15, 13, 4, 16), // bfloat16
    numbers(23, 16, 12, 8), // float8_e5m2
    numbers(24, 17, 10, 8), // float8_e4m3fn
    numbers(25, 19, 13, 8), // float8_e5m2fnuz
    numbers(26, 20, 11, 8), // float8_e4m3fnuz
    numbers(27, 7, 1, 16),  // uint16
    numbers(28, 8, 1, 32),  // uint32
    numbers(44, 28, 14, 8), // float8_e8m0fnu
];

impl Element {
    fn find(wanted: impl Fn(&Numbers) -> bool) -> Option<Self> {
        ELEMENTS.iter().find(|element| wanted(element)).map(Self)
    }

    /// The type with torch's number.
    pub(crate) fn of_torch(scalar_type: i32) -> Option<Self> {
        Self::find(|element| element.torch == scalar_type)
    }

    /// The type with PJRT's number.
    pub(crate) fn of_pjrt(number: c_int) -> Option<Self> {
        Self::find(|element| element.pjrt == number)
    }

    /// The type with DLPack's code and width.
    pub(crate) fn of_dlpack(code: u8, bits: u8) -> Option<Self> {
        Self::find(|element| element.dlpack == code && element.bits == bits)
    }

    /// torch's number.
    pub(crate) fn torch(self) -> i32 {
        self.0.torch
    }

    /// PJRT's number.
    pub(crate) fn pjrt(self) -> c_int {
        self.0.pjrt
    }

    /// DLPack's code and the width in bits.
    pub(crate) fn dlpack(self) -> (u8, u8) {
        (self.0.dlpack, self.0.bits)
    }
}
