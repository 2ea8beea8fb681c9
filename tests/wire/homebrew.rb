# frozen_string_literal: true

# Runs our formula's `install` without Homebrew: defines the methods of Homebrew that the formula uses. Any other method is an error.
# Usage, in the folder of the unpacked archive: ruby homebrew.rb FORMULA PREFIX. Prints the formula's fields as JSON.
require "fileutils"
require "json"
require "pathname"

PREFIX = Pathname(ARGV.fetch(1))
TOLD = {}

class Folder < Pathname
  def install(*names)
    mkpath
    names.flatten.each { |name| FileUtils.cp_r(name, self) }
  end
end

class Formula
  PLACES = {
    bin: "bin", doc: "share/doc/penstock", man1: "share/man/man1", var: "var", opt_bin: "opt/bin",
    bash_completion: "etc/bash_completion.d", zsh_completion: "share/zsh/site-functions", fish_completion: "share/fish/vendor_completions.d"
  }.freeze

  class << self
    %i[desc homepage version license url sha256].each { |word| define_method(word) { |value| TOLD[word] = value } }
    # Assumes Linux on an Intel processor.
    def on_linux = yield
    def on_intel = yield
    def on_macos; end
    def on_arm; end
    def service(&) = new.instance_exec(&)
    def test; end
  end

  PLACES.each { |name, path| define_method(name) { Folder.new(PREFIX / path) } }

  def run(command) = TOLD[:service] = command.map(&:to_s)
  def keep_alive(*) = nil
  def log_path(*) = nil
  def error_log_path(*) = nil
end

load ARGV.fetch(0)
Penstock.new.install
puts JSON.generate(TOLD)
