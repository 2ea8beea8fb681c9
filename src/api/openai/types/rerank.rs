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
    /// The number of best documents to return. If absent, all of them.
    #[schema(minimum = 0)]
    pub top_n: Option<u32>,
    /// Repeat the documents in the response.
    #[schema(default = false)]
    pub return_documents: Option<bool>,
    /// Keep only this many of each document's first tokens. If absent, documents are not cut.
    #[schema(minimum = 1)]
    pub max_tokens_per_doc: Option<u32>,
    /// The most tokens of a document and the query together. The end of a longer document is cut. -1 means as many as the context holds. If
    /// absent, texts that do not fit the context are refused. An embedding model reads each text by itself.
    #[schema(minimum = -1)]
    pub truncate_prompt_tokens: Option<i64>,
    /// If false, return a reranking model's logits and not probabilities.
    #[schema(default = true)]
    pub use_activation: Option<bool>,
    /// Identifies the end user. Has no effect on the answer.
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
    /// The documents, the best first.
    pub results: Vec<Ranked>,
    pub usage: RankUsage,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Ranked {
    /// The document's index in the request.
    pub index: usize,
    /// How well the document answers the query: a probability, or the cosine of two vectors for an embedding model.
    pub relevance_score: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<DocumentText>,
}

/// A text and its score, as text-embeddings-inference has them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RankedText {
    /// The text's index in the request.
    pub index: usize,
    pub score: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
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
    /// The texts to compare with `text_1`.
    pub text_2: Texts,
    /// The most tokens of a pair. The end of a longer `text_2` is cut. -1 means as many as the context holds. If absent, texts that do not
    /// fit the context are refused.
    #[schema(minimum = -1)]
    pub truncate_prompt_tokens: Option<i64>,
    /// If false, return a reranking model's logits and not probabilities.
    #[schema(default = true)]
    pub use_activation: Option<bool>,
    /// Identifies the end user. Has no effect on the answer.
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
    /// The time of creation [Unix seconds].
    pub created: u64,
    pub model: String,
    /// The scores, in the order of the request.
    pub data: Vec<Score>,
    pub usage: RankUsage,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Score {
    pub index: usize,
    #[schema(example = "score")]
    pub object: String,
    /// A probability, or the cosine of two vectors for an embedding model.
    pub score: f64,
}
