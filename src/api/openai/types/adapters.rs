//! `/v1/load_lora_adapter` and `/v1/unload_lora_adapter`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"lora_name": "pirate", "lora_path": "pirate.gguf"}))]
pub struct LoadAdapterRequest {
    /// The name under which the adapter will be served.
    pub lora_name: String,
    /// A GGUF file, or a folder as PEFT writes it, below a folder that the server permits. A relative path begins there.
    pub lora_path: String,
    /// Whether the adapter may take the place of one that was loaded under this name.
    #[serde(default)]
    pub load_inplace: bool,
    /// An extension: the model that the adapter changes. If absent, the first one that the server was started with.
    pub base_model_name: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"lora_name": "pirate"}))]
pub struct UnloadAdapterRequest {
    /// The name of an adapter that a request has loaded.
    pub lora_name: String,
}
