// SPDX-License-Identifier: Apache-2.0
// The command line of `attune model`.
#include <memory>

#include "models/config.h"
#include "tool/cli.h"
#include "tool/model/asked.h"

namespace attune {

void add_model(CLI::App& app, Context& context) {
  const Command sub = add_command(app, "model", "Generate with and train whole models, and show what fits");
  const auto asked = std::make_shared<ModelAsked>();
  sub.add_option("model", asked->model,
                 join("Use this model: ", models::known_models(),
                      ", a config.json of Hugging Face, or a folder with one; without one, list the models"))
      .type_name("NAME");
  const Argument generate =
      sub.add_flag("--generate", asked->generate, "Generate tokens after prompts of random tokens").group("Modes");
  const Argument train = sub.add_flag("--train", asked->train, "Train on one batch with AdamW").group("Modes");
  sub.add_flag("--memory", asked->memory, "Show the memory of training and of generation by owner").group("Modes");
  sub.add_option("--fits", asked->fits, "Show what fits on cards of so many GiB: 24,40,48,80,141")
      .delimiter(',')
      .one_word()
      .type_name("LIST")
      .between(1, 1 << 20)
      .group("Modes");
  sub.add_flag("--longest", asked->longest, "Show the longest context that trains and that generates on each card")
      .group("Modes");
  sub.add_option("--check", asked->check,
                 "Compare logits, loss, gradients and greedy tokens with those of this safetensors file")
      .type_name("FILE")
      .group("Modes");
  sub.add_option("--save", asked->save, "Save the model to this folder afterwards, as Hugging Face does")
      .type_name("FOLDER");
  sub.add_option("--batch", asked->batch, "Use so many sequences").type_name("N").show_default().between(1, 1 << 16);
  sub.add_option("--prompt", asked->prompt,
                 "Generate after prompts of so many tokens, one number or one a sequence; default 64")
      .delimiter(',')
      .one_word()
      .needs(generate)
      .type_name("LIST")
      .between(1, 1 << 24);
  sub.add_option("--tokens", asked->tokens, "Generate so many tokens")
      .needs(generate)
      .type_name("N")
      .show_default()
      .between(1, 1 << 24);
  sub.add_option("--temperature", asked->temperature, "Sample at this temperature; 0 is greedy")
      .needs(generate)
      .type_name("X")
      .show_default()
      .between(0., 1e3);
  sub.add_option("--top", asked->top, "Sample from so many of the likeliest tokens; 0 is all")
      .needs(generate)
      .type_name("N")
      .show_default()
      .between(0, 1 << 24);
  sub.add_option("--length", asked->length, "Train on so many tokens per sequence")
      .type_name("N")
      .show_default()
      .between(2, 1 << 24);
  sub.add_option("--steps", asked->steps, "Train for so many steps")
      .needs(train)
      .type_name("N")
      .show_default()
      .between(1, 1 << 24);
  sub.add_option("--rate", asked->rate, "Train with this learning rate")
      .needs(train)
      .type_name("X")
      .show_default()
      .between(0., 1.);
  sub.add_option("--text", asked->text, "Train on the bytes of this file instead of random tokens")
      .needs(train)
      .type_name("FILE");
  sub.add_flag("--checkpointing", asked->checkpointing,
               "Keep only the input of each layer, and compute the layer again in the backward");
  sub.add_option("--attention", asked->attention,
                 "Compute attention by auto, the planner's choice, by standard, textbook attention, or by this backend")
      .type_name("NAME")
      .show_default();
  sub.add_option("--dtype", asked->dtype, "Compute in f32, bf16 or f16; default bf16 for a GPU or --fits, else f32")
      .type_name("NAME");
  sub.add_option("--device", asked->device, "Run on cpu; the memory options also take a GPU, as in attune plan")
      .type_name("NAME")
      .show_default();
  sub.add_option("--seed", asked->seed, "Draw weights, prompts and samples by this seed")
      .type_name("N")
      .show_default();
  sub.footer(
      "Examples:\n"
      "  attune model\n"
      "  attune model gpt2-124m --generate --prompt 64 --tokens 32\n"
      "  attune model gpt2-124m --train --length 128 --steps 3\n"
      "  attune model llama-2-7b --memory --device h100 --batch 4 --length 2048\n"
      "  attune model llama-3-70b --fits 24,40,48,80,141\n"
      "  attune model ./checkpoint --check numbers.safetensors\n\n"
      "Weights are those of the folder, or random by seed where it has none.\n"
      "Exit code 1 if a number differs or a file is wrong, 3 if a file is missing or memory is short.");
  sub.callback([asked, &context] { run_model(*asked, context); });
}

}  // namespace attune
