//! Reads `tokenizer.model`: SentencePiece's vocabulary, in the wire format of Protocol Buffers.

use std::path::Path;

use gguf::{Array, Value};
use prost::Message;

use crate::error::{Fallible, fault};
use crate::json;
use crate::table::Table;

/// SentencePiece's `ModelProto`, with only the fields that are needed here.
#[derive(Message)]
struct Model {
    #[prost(message, repeated, tag = "1")]
    pieces: Vec<Piece>,
    #[prost(message, optional, tag = "2")]
    trainer: Option<Trainer>,
    #[prost(message, optional, tag = "3")]
    normalizer: Option<Normalizer>,
}

#[derive(Message)]
struct Piece {
    #[prost(string, optional, tag = "1")]
    piece: Option<String>,
    #[prost(float, optional, tag = "2")]
    score: Option<f32>,
    /// The type, numbered as in GGUF's `token_type`.
    #[prost(int32, optional, tag = "3")]
    kind: Option<i32>,
}

#[derive(Message)]
struct Trainer {
    /// The model type: 1 is unigram, 2 is BPE.
    #[prost(int32, optional, tag = "3")]
    kind: Option<i32>,
    #[prost(int32, optional, tag = "40")]
    unknown: Option<i32>,
    #[prost(int32, optional, tag = "41")]
    bos: Option<i32>,
    #[prost(int32, optional, tag = "42")]
    eos: Option<i32>,
}

#[derive(Message)]
struct Normalizer {
    #[prost(bytes = "vec", optional, tag = "2")]
    charsmap: Option<Vec<u8>>,
    #[prost(bool, optional, tag = "3")]
    add_prefix: Option<bool>,
    #[prost(bool, optional, tag = "4")]
    squeeze: Option<bool>,
}

fn open(path: &Path) -> Fallible<Option<Model>> {
    let Some(bytes) = json::text(path)? else { return Ok(None) };
    let model = Model::decode(&bytes[..]).or_else(|error| fault(path, format!("is not a SentencePiece model: {error}")))?;
    let is_sound = |piece: &Piece| piece.score.unwrap_or(0.0).is_finite() && (1..=6).contains(&piece.kind.unwrap_or(1));
    match model.pieces.iter().position(|piece| !is_sound(piece)) {
        Some(id) => fault(path, format!("piece {id} is invalid, expected a finite score and a type from 1 to 6")),
        None if model.pieces.is_empty() => fault(path, "has no pieces: is it a SentencePiece model?"),
        None => Ok(Some(model)),
    }
}

/// Reads a vocabulary that has no `tokenizer.json`.
pub fn read(path: &Path) -> Fallible<Table> {
    let Some(model) = open(path)? else { return fault(path, "does not exist") };
    let trainer = model.trainer.unwrap_or_default();
    let normalizer = model.normalizer.unwrap_or_default();
    let kind = match trainer.kind.unwrap_or(1) {
        1 => "t5",
        2 => "llama",
        other => return fault(path, format!("model_type is {other}, expected 1 (unigram) or 2 (BPE)")),
    };
    let mut table = Table { model: kind, ..Table::default() };
    table.scores = Some(model.pieces.iter().map(|piece| piece.score.unwrap_or(0.0)).collect());
    table.types = model.pieces.iter().map(|piece| piece.kind.unwrap_or(1)).collect();
    table.tokens = model.pieces.into_iter().map(|piece| piece.piece.unwrap_or_default()).collect();
    let id = |id: Option<i32>, usual: i32| u32::try_from(id.unwrap_or(usual)).ok();
    (table.unknown, table.bos, table.eos) = (id(trainer.unknown, 0), id(trainer.bos, 1), id(trainer.eos, 2));
    (table.adds_bos, table.adds_eos) = (table.model == "llama", table.model == "t5");
    table.key("pre", "default");
    table.key("add_space_prefix", normalizer.add_prefix.unwrap_or(true));
    if table.model == "t5" {
        table.key("remove_extra_whitespaces", normalizer.squeeze.unwrap_or(true));
        if let Some(charsmap) = normalizer.charsmap.filter(|map| !map.is_empty()) {
            table.key("precompiled_charsmap", Value::Array(Array::U8(charsmap)));
        }
    }
    Ok(table)
}

/// The scores of a `tokenizer.json`'s tokens. None unless the checkpoint also has a SentencePiece BPE model with the same tokens.
pub fn scores(path: &Path, tokens: &[String]) -> Fallible<Option<Vec<f32>>> {
    let Some(model) = open(path)? else { return Ok(None) };
    let is_same = |(piece, token): (&Piece, &String)| piece.kind.unwrap_or(1) != 1 || piece.piece.as_deref().unwrap_or_default() == token;
    if model.trainer.unwrap_or_default().kind != Some(2)
        || model.pieces.len() > tokens.len()
        || !model.pieces.iter().zip(tokens).all(is_same)
    {
        return Ok(None);
    }
    let mut scores: Vec<f32> = model.pieces.iter().map(|piece| piece.score.unwrap_or(0.0)).collect();
    scores.resize(tokens.len(), 0.0);
    Ok(Some(scores))
}
