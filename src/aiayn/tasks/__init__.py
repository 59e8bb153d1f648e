"""Commands, one a file: functions of the composed config, named by conf/task/."""
