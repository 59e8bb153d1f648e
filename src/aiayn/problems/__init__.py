"""What is learned: a file for each kind, and conf/problem names it. The data choose it.

    # conf/data/treebank.yaml                       # conf/problem/parsing.yaml
    defaults:                                       # @package _global_
      - schema                                      defaults:
      - override /problem@_global_.problem: parsing   - override /metrics: [f1, exact_match]
      - _self_                                        - _self_
    name: treebank                                  objective: f1
    corpus: {_target_: mypackage.treebank.Trees}    problem: {_target_: mypackage.parsing.Parsing, _partial_: true}

A problem is a class with the methods of `problem.Problem`, made of a run's config. Training and evaluation know no more
of it than these: what the model is given, what is prepared, batches, the module that learns from them, and what a
checkpoint is worth on a split. Where outputs are text, as trees are, `translation.Translation` will do, with another
corpus and other metrics. Where nothing is decoded, as with a language model, `evaluate` gives `perplexity` alone, the
YAML overrides `/callbacks` by a list without `quality`, and `batches` yields what the model's `forward` reads.
"""
