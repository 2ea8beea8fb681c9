//! Chat templates that come with a request.

use std::sync::Arc;

use super::error::RequestError;
use super::model::Model;
use chat::Dialect;
use template::ChatTemplate;

impl Model {
    /// The model with the chat template `source` for one request, or the model itself without one.
    ///
    /// # Errors
    /// The template is malformed.
    pub fn or_with_template(self: &Arc<Self>, source: Option<&str>) -> Result<Arc<Self>, RequestError> {
        source.map_or_else(|| Ok(self.clone()), |source| self.with_template(source))
    }

    pub fn with_template(self: &Arc<Self>, source: &str) -> Result<Arc<Self>, RequestError> {
        let special = |id: Option<u32>| id.and_then(|id| self.base.tokenizer.token_text(id)).unwrap_or_default();
        let (bos, eos) = (special(self.base.tokenizer.bos()), special(self.base.tokenizer.eos()));
        let template = ChatTemplate::new(source, bos, eos).map_err(|error| RequestError::Template(error.to_string()))?;
        let dialect = Dialect::of(&template, &self.base.tokenizer);
        let (template, dialect) = (Some(Arc::new(template)), Some(Arc::new(dialect)));
        Ok(Arc::new(Self { template, dialect, only_continues: false, ..self.leased(Box::new(self.clone())) }))
    }
}
