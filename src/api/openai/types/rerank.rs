//! `/v1/rerank` and `/score`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"model": "smollm2:135m", "query": "Which river flows through Vienna?",
    "documents": ["The Danube flows through Vienna.", "Oslo lies on a fjord."], "top_n": 1}))]
pub struct RerankRequest {
    pub model: String,
    pub query: String,
    /// The texts to rank, at most 1,024.
    pub documents: Vec<Document>,
    /// How many of the best documents to return. Absent: all of them.
    #[schema(minimum = 0)]
    pub top_n: Option<u32>,
    /// Repeat the documents in the answer.
    #[schema(default = false)]
    pub return_documents: Option<bool>,
    /// Keep only so many of each document's first tokens. Absent: documents stay whole.
    #[schema(minimum = 1)]
    pub max_tokens_per_doc: Option<u32>,
    /// The most tokens of a document and the query together. So much of the document's end is left out. -1 stands for the context. Absent:
    /// what is longer than the context is refused. A model that makes vectors reads each text by itself.
    #[schema(minimum = -1)]
    pub truncate_prompt_tokens: Option<i64>,
    /// false returns a ranking model's own numbers (logits) in place of probabilities.
    #[schema(default = true)]
    pub use_activation: Option<bool>,
    /// Identifies the end user. It does not change the answer.
    pub user: Option<String>,
}

/// A text, or an object that holds one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Document {
    Text(String),
    Object(DocumentText),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DocumentText {
    pub text: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Ranking {
    #[schema(example = "rerank-6f1b0a9c4f5e4d0c8f3f5a3f0d1c2b4a")]
    pub id: String,
    pub model: String,
    /// The best document first.
    pub results: Vec<Ranked>,
    pub usage: RankUsage,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Ranked {
    /// The document's place in the request.
    pub index: usize,
    /// How well the document answers the query: a probability, or the cosine of two vectors if the model makes vectors of texts.
    pub relevance_score: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<DocumentText>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RankUsage {
    pub prompt_tokens: u32,
    pub total_tokens: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"model": "smollm2:135m", "text_1": "Which river flows through Vienna?",
    "text_2": ["The Danube flows through Vienna.", "Oslo lies on a fjord."]}))]
pub struct ScoreRequest {
    pub model: String,
    /// One text, or as many as `text_2` has.
    pub text_1: Texts,
    /// The texts that are compared with `text_1`.
    pub text_2: Texts,
    /// The most tokens of a pair. So much of the end of `text_2` is left out. -1 stands for the context. Absent: what is longer than the
    /// context is refused.
    #[schema(minimum = -1)]
    pub truncate_prompt_tokens: Option<i64>,
    /// false returns a ranking model's own numbers (logits) in place of probabilities.
    #[schema(default = true)]
    pub use_activation: Option<bool>,
    /// Identifies the end user. It does not change the answer.
    pub user: Option<String>,
}

/// One text or several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Texts {
    One(String),
    Many(Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Scores {
    #[schema(example = "score-6f1b0a9c4f5e4d0c8f3f5a3f0d1c2b4a")]
    pub id: String,
    #[schema(example = "list")]
    pub object: String,
    /// Unix seconds.
    pub created: u64,
    pub model: String,
    /// In the order of the request.
    pub data: Vec<Score>,
    pub usage: RankUsage,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Score {
    pub index: usize,
    #[schema(example = "score")]
    pub object: String,
    /// A probability, or the cosine of two vectors if the model makes vectors of texts.
    pub score: f64,
}
