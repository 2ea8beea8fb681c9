//! What stands in the result of a tool in place of something that the model does not take. Agents send their whole history again each time:
//! if such a result were refused, one picture would end a conversation for good.

pub const IMAGE: &str = "[an image was left out: this model takes none]";
pub const DOCUMENT: &str = "[a document was left out: this model takes only documents of text]";
pub const FILE: &str = "[a file was left out: this model takes only text]";
