-- Engine runs of the datasets that the windows are in.
select epoch_key from epochs join windows using (dataset) group by 1 order by 1;
