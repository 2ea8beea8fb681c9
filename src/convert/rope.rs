//! Converts the rotation of queries and keys: its base, its scaling, and the factors that become tensors.

use crate::config::Config;
use crate::error::Fallible;
use crate::family::{Keys, Shape};

/// Factors of the rotation's frequencies, which become tensors of the output.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Factors(pub Vec<(&'static str, Vec<f32>)>);

/// The paths of a setting: per kind of layer or alone in newer files, and the path in older files.
fn places(setting: &str) -> [String; 3] {
    ["rope_parameters.full_attention", "rope_parameters", "rope_scaling"].map(|section| format!("{section}.{setting}"))
}

struct Rope<'a>(&'a Config);

impl Rope<'_> {
    fn number(&self, setting: &str) -> Fallible<Option<f64>> {
        let places = places(setting);
        self.0.number(&places.each_ref().map(String::as_str))
    }

    fn count(&self, setting: &str) -> Fallible<Option<u32>> {
        let places = places(setting);
        self.0.count(&places.each_ref().map(String::as_str))
    }

    fn need(&self, setting: &str) -> Fallible<f64> {
        match self.number(setting)? {
            Some(x) if x > 0.0 => Ok(x),
            _ => self.0.fault(&self.place(setting), "a positive number"),
        }
    }

    /// The path at which the file has the setting. The path of older files if the setting is missing.
    fn place(&self, setting: &str) -> String {
        let [layers, new, old] = places(setting);
        [layers, new].into_iter().find(|place| self.0.get(&[place]).is_some()).unwrap_or(old)
    }

    fn kind(&self) -> Fallible<&str> {
        for setting in ["rope_type", "type"] {
            if let Some(kind) = self.0.text(&places(setting).each_ref().map(String::as_str))? {
                return Ok(kind);
            }
        }
        Ok("default")
    }

    /// The context before it was extended.
    fn original_context(&self, shape: &Shape) -> Fallible<u32> {
        let own = self.count("original_max_position_embeddings")?;
        Ok(own.or(self.0.count(&["original_max_position_embeddings"])?).unwrap_or(shape.context))
    }
}

/// The share of a head's elements that is rotated.
pub fn share(config: &Config) -> Fallible<f64> {
    let rope = Rope(config);
    let share = rope.number("partial_rotary_factor")?.or(config.number(&["partial_rotary_factor", "rotary_pct", "rope_pct"])?);
    match share.unwrap_or(1.0) {
        share if share > 0.0 && share <= 1.0 => Ok(share),
        _ => config.fault("partial_rotary_factor", "a number above 0, at most 1"),
    }
}

/// Writes the keys of the rotation. Extends the context if the scaling does so.
pub fn read(config: &Config, shape: &mut Shape, keys: &mut Keys) -> Fallible<Factors> {
    let rope = Rope(config);
    let theta = rope.number("rope_theta")?.or(config.number(&["rope_theta", "rotary_emb_base"])?);
    keys.arch("rope.dimension_count", shape.rotated);
    keys.arch("rope.freq_base", theta.unwrap_or(10_000.0) as f32);
    let local = config.number(&["rope_parameters.sliding_attention.rope_theta", "rope_local_base_freq"])?;
    keys.number("rope.freq_base_swa", local);
    match rope.kind()? {
        // The base grows only beyond the trained context, which the output never exceeds.
        "default" | "none" | "dynamic" => Ok(Factors::default()),
        "linear" => {
            keys.arch("rope.scaling.type", "linear");
            keys.arch("rope.scaling.factor", rope.need("factor")? as f32);
            Ok(Factors::default())
        }
        "yarn" => yarn(&rope, shape, keys),
        "llama3" => Ok(Factors(vec![("rope_freqs.weight", llama3(&rope, shape, theta.unwrap_or(10_000.0))?)])),
        "longrope" | "su" => long(&rope, shape, keys),
        _ => {
            let place = if rope.0.get(&[&rope.place("rope_type")]).is_some() { "rope_type" } else { "type" };
            config.fault(&rope.place(place), "default, linear, dynamic, yarn, llama3 or longrope")
        }
    }
}

fn yarn(rope: &Rope, shape: &mut Shape, keys: &mut Keys) -> Fallible<Factors> {
    let (factor, original) = (rope.need("factor")?, rope.original_context(shape)?);
    let longer = (f64::from(original) * factor).min(f64::from(u32::MAX >> 1)) as u32;
    shape.context = shape.context.max(longer);
    keys.arch("rope.scaling.type", "yarn");
    keys.arch("rope.scaling.factor", factor as f32);
    keys.arch("rope.scaling.original_context_length", original);
    keys.number("rope.scaling.yarn_beta_fast", rope.number("beta_fast")?);
    keys.number("rope.scaling.yarn_beta_slow", rope.number("beta_slow")?);
    // The output's factor multiplies the usual one.
    let usual = 0.1 * factor.ln() + 1.0;
    keys.number("rope.scaling.attn_factor", rope.number("attention_factor")?.map(|given| given / usual).filter(|x| (x - 1.0).abs() > 1e-6));
    for setting in ["mscale", "mscale_all_dim"] {
        if rope.number(setting)?.is_some_and(|x| x != 0.0) && rope.number("attention_factor")?.is_none() {
            return rope.0.fault(&rope.place(setting), "no such setting with yarn");
        }
    }
    Ok(Factors::default())
}

/// The divisor of each pair's frequency (Llama 3.1).
fn llama3(rope: &Rope, shape: &Shape, theta: f64) -> Fallible<Vec<f32>> {
    let (factor, low, high) = (rope.need("factor")?, rope.need("low_freq_factor")?, rope.need("high_freq_factor")?);
    if low >= high {
        return rope.0.fault(&rope.place("low_freq_factor"), format!("a number below high_freq_factor ({high})"));
    }
    let original = f64::from(rope.original_context(shape)?);
    let of = |pair: u32| {
        let wavelength = std::f64::consts::TAU * theta.powf(f64::from(2 * pair) / f64::from(shape.rotated));
        let turns = original / wavelength;
        let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
        (1.0 / ((1.0 - kept) / factor + kept)) as f32
    };
    Ok((0..shape.rotated / 2).map(of).collect())
}

fn long(rope: &Rope, shape: &Shape, keys: &mut Keys) -> Fallible<Factors> {
    let original = rope.original_context(shape)?;
    let pairs = (shape.rotated / 2) as usize;
    let factors = |setting: &str| rope.0.positives(&rope.place(setting), pairs);
    let growth = f64::from(shape.context) / f64::from(original);
    let usual = if growth <= 1.0 { 1.0 } else { (1.0 + growth.ln() / f64::from(original).ln()).sqrt() };
    keys.arch("rope.scaling.type", "longrope");
    keys.arch("rope.scaling.original_context_length", original);
    keys.arch("rope.scaling.attn_factor", rope.number("attention_factor")?.unwrap_or(usual) as f32);
    Ok(Factors(vec![("rope_factors_long.weight", factors("long_factor")?), ("rope_factors_short.weight", factors("short_factor")?)]))
}
