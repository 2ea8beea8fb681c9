//! HTTP and OpenAI's JSON: the only place that knows them.
