//! Encodes some of a tensor's weights in another type and measures the error ([`encode_weights`]), and all of them on several threads
//! ([`write_pieces`]).

use crate::encoder::Encoder;
use crate::error::QuantizeError;
use crate::output::Output;

/// Encoded weights, with the sum of their squared errors and the sum of their squares.
pub struct Piece {
    pub bytes: Vec<u8>,
    pub error: f64,
    pub square: f64,
}

/// Encodes whole blocks of a tensor's weights. `first` is the index of the first weight, for errors.
///
/// # Errors
/// If a weight is not finite, or if the type cannot hold it.
pub fn encode_weights(tensor: &str, to: &Encoder, weights: &[f32], first: u64) -> Result<Piece, QuantizeError> {
    check_finite(tensor, weights, first)?;
    let count = weights.len();
    let mut bytes = vec![0; count / to.quant.block_size * to.quant.block_bytes];
    to.encode(weights, &mut bytes);
    let mut back = vec![0f32; count];
    (to.quant.dequantize)(&bytes, &mut back);
    if let Some(i) = back.iter().position(|x| !x.is_finite()) {
        let (tensor, type_name) = (tensor.to_owned(), to.quant.name);
        return Err(QuantizeError::TooLarge { tensor, index: first + i as u64, value: weights[i], type_name });
    }
    let (mut error, mut square) = (0.0, 0.0);
    for (x, back) in weights.iter().zip(&back) {
        error += f64::from(back - x).powi(2);
        square += f64::from(*x).powi(2);
    }
    Ok(Piece { bytes, error, square })
}

/// Encodes pieces of a tensor on `threads` threads at once and writes them in order. Returns the squared error relative to the squared
/// weights.
///
/// # Errors
/// If a piece cannot be encoded or written.
pub fn write_pieces<T: Send, E: Send + From<QuantizeError>>(
    pieces: impl Iterator<Item = T>,
    threads: usize,
    out: &mut Output,
    encode: impl Fn(T) -> Result<Piece, E> + Sync,
) -> Result<f64, E> {
    let (mut pieces, encode) = (pieces.peekable(), &encode);
    let (mut error, mut square) = (0.0, 0.0);
    while pieces.peek().is_some() {
        let encoded: Vec<Result<Piece, E>> = std::thread::scope(|scope| {
            let running: Vec<_> = pieces.by_ref().take(threads.max(1)).map(|piece| scope.spawn(move || encode(piece))).collect();
            running.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        });
        for piece in encoded {
            let piece = piece?;
            out.put(&piece.bytes)?;
            error += piece.error;
            square += piece.square;
        }
    }
    Ok(if square > 0.0 { error / square } else { 0.0 })
}

/// Checks that all weights are finite.
///
/// # Errors
/// If a weight is infinite or not a number.
pub fn check_finite(tensor: &str, weights: &[f32], first: u64) -> Result<(), QuantizeError> {
    match weights.iter().position(|x| !x.is_finite()) {
        Some(i) => Err(QuantizeError::NotFinite { tensor: tensor.to_owned(), index: first + i as u64, value: weights[i] }),
        None => Ok(()),
    }
}
