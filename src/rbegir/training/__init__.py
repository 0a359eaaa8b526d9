"""Learning from clicked pairs, read from top to bottom:

    trainer        what a user calls: pairs in, a model and its figures out      config: the settings
    loop           the epochs: steps, validation, the best epoch                 state: what is saved
    step           one step: two towers forward, loss, backward, update          loss: the objective
    rerank         after the last epoch: what orders the first candidates by their texts
    corpus         pairs made of the texts that will be searched
    batches        the arrays of a step, built ahead in threads
    data           the file as chunks of tokenised pairs, and what is held out
    distributed    several processes: who owns which rows, what they exchange

`upgrade` trains a new model for codes that are already stored, with the same loop.
"""
