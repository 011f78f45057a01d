-- The windows that hold for one epoch's dataset.
select name, from_ns, to_ns from windows
where dataset = (select dataset from epochs where epoch_key = ?)
