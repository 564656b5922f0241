"""Who answers tasks on this machine; knows no configuration."""
