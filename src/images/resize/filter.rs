//! The filters.

use std::f64::consts::PI;

/// How the samples around a point weigh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Filter {
    Bilinear,
    /// With a = -1/2.
    Bicubic,
    /// With three lobes.
    Lanczos,
}

impl Filter {
    /// The distance from which on weights are zero.
    pub fn support(self) -> f64 {
        match self {
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    /// The weight at a distance, before weights are normalised.
    pub fn weight(self, x: f64) -> f64 {
        match self {
            Self::Bilinear => (1.0 - x.abs()).max(0.0),
            Self::Bicubic => cubic(x.abs()),
            Self::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
            Self::Lanczos => 0.0,
        }
    }
}

fn cubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 { 1.0 } else { (x * PI).sin() / (x * PI) }
}
