//! Pillow's resize, byte for byte.
//!
//! Two passes with 8-bit samples between them: first across and then down, or the other way around if the height shrinks by more than twice
//! as many pixels as the width (since Pillow 13). An output sample is a sum of input samples whose weights come from a filter around the
//! output's centre; when a side shrinks, the filter is widened by the scale. Weights are normalised in float64 and then rounded to 22 bits
//! behind the point, so the sums are of integers.

mod filter;

use std::borrow::Cow;

pub use filter::Filter;

use crate::Rgb;

/// Bits behind the point of a weight.
const PRECISION: u32 = 32 - 8 - 2;
/// One half, which makes the shift of a sum round.
const HALF: i32 = 1 << (PRECISION - 1);

/// A canvas of one colour with a picture on it. The canvas is never in memory: only the resize sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mount {
    pub width: u32,
    pub height: u32,
    /// Place of the picture's top left corner.
    pub left: u32,
    pub top: u32,
    pub colour: [u8; 3],
}

/// Resizes a picture.
pub fn resize(source: &Rgb, width: u32, height: u32, filter: Filter) -> Rgb {
    let bare = Mount { width: source.width, height: source.height, left: 0, top: 0, colour: [0; 3] };
    resize_mounted(source, &bare, width, height, filter)
}

/// Resizes a picture on a canvas.
pub fn resize_mounted(source: &Rgb, mount: &Mount, width: u32, height: u32, filter: Filter) -> Rgb {
    let shrinks_by = |input: u32, output: u32| i64::from(input) - i64::from(output);
    let (narrower, lower) = (shrinks_by(mount.width, width), shrinks_by(mount.height, height));
    // Which pass is first decides what is rounded between them.
    if lower > 0 && lower > 2 * narrower {
        across(down(Cow::Borrowed(source), mount, height, filter), mount, width, filter).into_owned()
    } else {
        down(across(Cow::Borrowed(source), mount, width, filter), mount, height, filter).into_owned()
    }
}

/// The picture's rows, each mounted and resized to `width`.
fn across<'a>(source: Cow<'a, Rgb>, mount: &Mount, width: u32, filter: Filter) -> Cow<'a, Rgb> {
    if mount.width == width && source.width == width {
        return source;
    }
    let weights = (mount.width != width).then(|| Weights::new(mount.width, width, filter));
    let stride = 3 * width as usize;
    let mut pixels = vec![0; stride * source.height as usize];
    // One byte more than a row has, so that a pixel can be read as four bytes.
    let mut line: Vec<u8> = mount.colour.into_iter().cycle().take(3 * mount.width as usize + 1).collect();
    let place = 3 * mount.left as usize..3 * (mount.left + source.width) as usize;
    for (output, y) in pixels.chunks_exact_mut(stride).zip(0..) {
        line[place.clone()].copy_from_slice(source.row(y));
        match &weights {
            Some(weights) => resize_row(&line, weights, output),
            None => output.copy_from_slice(&line[..stride]),
        }
    }
    Cow::Owned(Rgb { width, height: source.height, pixels })
}

/// The picture's columns, each mounted and resized to `height`.
fn down<'a>(source: Cow<'a, Rgb>, mount: &Mount, height: u32, filter: Filter) -> Cow<'a, Rgb> {
    if mount.height == height && source.height == height {
        return source;
    }
    let (width, stride) = (source.width, 3 * source.width as usize);
    let empty: Vec<u8> = mount.colour.into_iter().cycle().take(stride).collect();
    let row = |y: u32| match y.checked_sub(mount.top) {
        Some(y) if y < source.height => source.row(y),
        _ => &empty[..],
    };
    if mount.height == height {
        let pixels = (0..height).map(row).collect::<Vec<_>>().concat();
        return Cow::Owned(Rgb { width, height, pixels });
    }
    let weights = Weights::new(mount.height, height, filter);
    let mut pixels = vec![0; stride * height as usize];
    let mut sums = vec![0; stride];
    for (output, (first, weights)) in pixels.chunks_exact_mut(stride).zip(weights.iter()) {
        sums.fill(HALF);
        for (y, &weight) in (first as u32..).zip(weights) {
            for (sum, &x) in sums.iter_mut().zip(row(y)) {
                *sum += i32::from(x) * weight;
            }
        }
        for (output, &sum) in output.iter_mut().zip(&sums) {
            *output = sample(sum);
        }
    }
    Cow::Owned(Rgb { width, height, pixels })
}

fn resize_row(line: &[u8], weights: &Weights, output: &mut [u8]) {
    for (output, (first, weights)) in output.chunks_exact_mut(3).zip(weights.iter()) {
        let mut sums = [HALF; 4];
        let pixels = line[3 * first..3 * (first + weights.len()) + 1].windows(4).step_by(3);
        for (pixel, &weight) in pixels.zip(weights) {
            for (sum, &x) in sums.iter_mut().zip(pixel) {
                *sum += i32::from(x) * weight;
            }
        }
        for (output, &sum) in output.iter_mut().zip(&sums) {
            *output = sample(sum);
        }
    }
}

fn sample(sum: i32) -> u8 {
    (sum >> PRECISION).clamp(0, 255) as u8
}

/// The weights of one axis.
struct Weights {
    /// Of each output sample: the first input sample, and how many have a weight.
    spans: Vec<(usize, usize)>,
    /// [outputs, most]
    values: Vec<i32>,
    /// Most input samples of an output sample.
    most: usize,
}

impl Weights {
    fn new(input: u32, output: u32, filter: Filter) -> Self {
        let scale = f64::from(input) / f64::from(output);
        let widening = scale.max(1.0);
        let support = filter.support() * widening;
        let most = 2 * support.ceil() as usize + 1;
        let (mut spans, mut values) = (Vec::with_capacity(output as usize), Vec::with_capacity(most * output as usize));
        let mut exact = Vec::with_capacity(most);
        for x in 0..output {
            let centre = (f64::from(x) + 0.5) * scale;
            let first = (centre - support + 0.5).max(0.0) as usize;
            let end = ((centre + support + 0.5) as usize).min(input as usize);
            let shrink = 1.0 / widening;
            exact.clear();
            exact.extend((first..end).map(|i| filter.weight((i as f64 - centre + 0.5) * shrink)));
            let total: f64 = exact.iter().sum();
            let total = if total == 0.0 { 1.0 } else { total };
            values.extend(exact.iter().map(|weight| fixed(weight / total)));
            values.resize(most * (x as usize + 1), 0);
            spans.push((first, end - first));
        }
        Self { spans, values, most }
    }

    /// The first input sample of each output sample, and the weights from there on.
    fn iter(&self) -> impl Iterator<Item = (usize, &[i32])> {
        self.spans.iter().zip(self.values.chunks_exact(self.most)).map(|(&(first, count), values)| (first, &values[..count]))
    }
}

/// A weight with 22 bits behind the point, halves rounded away from zero.
fn fixed(weight: f64) -> i32 {
    let half = if weight < 0.0 { -0.5 } else { 0.5 };
    (half + weight * f64::from(1 << PRECISION)) as i32
}

/// Puts a picture on a canvas in memory.
pub fn mounted<'a>(picture: Cow<'a, Rgb>, mount: &Mount) -> Cow<'a, Rgb> {
    if (mount.width, mount.height) == (picture.width, picture.height) {
        return picture;
    }
    Cow::Owned(resize_mounted(&picture, mount, mount.width, mount.height, Filter::Bilinear))
}
