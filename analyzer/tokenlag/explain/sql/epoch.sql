-- One epoch's name and limits.
select engine_id, max_seqs, max_batch_tokens from epochs where epoch_key = ?
