insert into read_notes
select ${dataset}, kind, place, n, text from st_notes;
